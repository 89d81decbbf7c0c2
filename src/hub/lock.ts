import { mkdir, open } from 'node:fs/promises';
import path from 'node:path';
import { addon } from '../../native/binding.js';
import type { HubClient } from './client.js';

const POLL_MS = 100;
/** After so long whoever waits is told why. */
const PATIENCE_MS = 5000;

/**
 * Takes the lock that Python's huggingface_hub takes on a blob: flock(2) on .locks/REPO/ETAG.lock. Waits while another
 * process has it. The file stays, as Python leaves it: removing it would let two processes lock two files of one name.
 * On a file system without locks there is none; then two processes write the same bytes to the same places.
 * Throws LPQ_ABORTED, and what the system says of a place that cannot be written.
 */
export async function lockFile(file: string, client: HubClient, onWait?: () => void): Promise<() => Promise<void>> {
  await mkdir(path.dirname(file), { recursive: true });
  const handle = await open(file, 'a', 0o664);
  try {
    const started = performance.now();
    let told = false;
    while (addon().tryLock(handle.fd) === 'busy') {
      if (!told && performance.now() - started > PATIENCE_MS) {
        told = true;
        onWait?.();
      }
      await client.pause(POLL_MS);
    }
  } catch (error) {
    await handle.close();
    throw error;
  }
  return () => handle.close();
}
