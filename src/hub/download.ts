import { mkdir, rm } from 'node:fs/promises';
import path from 'node:path';
import { LpqError } from '../core/error.js';
import type { HubClient } from './client.js';
import { type Download, Transfer } from './transfer.js';

/**
 * Downloads a blob, going on from what an earlier run left of it, and checks it while it streams: every byte that ends up
 * in the file went through the digest that the listing names. Blobs are named by their contents, so that a remainder
 * cannot be of another version; a wrong one is found by the digest, and the download starts once more from the beginning.
 * Throws LPQ_HUB_CHECKSUM (the file is removed), LPQ_HUB_* as the client and the server give cause, LPQ_ABORTED;
 * whatever the system says of the disk is thrown as it is.
 */
export async function downloadBlob(client: HubClient, download: Download): Promise<void> {
  const { file, blob } = download;
  await mkdir(path.dirname(blob), { recursive: true });
  const incomplete = `${blob}.incomplete`;
  for (;;) {
    const transfer = await Transfer.open(client, download, incomplete);
    let left = true;
    try {
      await transfer.run();
      const found = transfer.digest();
      if (found === file.etag) {
        await transfer.finish(blob);
        return;
      }
      left = false;
      if (transfer.resumed) {
        download.onBytes?.(-file.size);
        continue;
      }
      throw new LpqError('LPQ_HUB_CHECKSUM', `${file.path} of ${download.model.id} arrived damaged`, {
        got: `${file.digest} ${found}`,
        expected: file.etag,
        hint: 'Run the command again; if it happens twice, a proxy or HF_ENDPOINT sends other bytes. lpq kept nothing.',
      });
    } catch (error) {
      if (transfer.spoiled) left = false;
      throw error;
    } finally {
      await transfer.close();
      if (!left) await rm(incomplete, { force: true });
    }
  }
}
