import { execFile } from 'node:child_process';
import { type FileHandle, mkdir, open, rename } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { sync } from '../formats/directory/output-directory.js';
import { writeFully } from '../formats/safetensors/tensor-slot.js';
import { FLUSH_BYTES } from '../formats/safetensors/write.js';
import { tell } from '../src/core/activity.js';
import { LpqError } from '../src/core/error.js';
import { type FileSize, fileSizes, totalBytes } from './directory.js';

const CHUNK_BYTES = 2 ** 23;

/**
 * What a quantizer would take that computed nothing: reads every file of `source` and writes files of the given names and
 * sizes to `target`, beside the reading but never a larger share of them than has been read, for a result depends on what
 * it is made of; with the syncs of a real output, those beside the writing too, and its rename. Returns the seconds.
 */
export async function copyLike(source: string, target: string, outputs: readonly FileSize[]): Promise<number> {
  const files = await fileSizes(source);
  const temporary = `${target}.lpq-tmp-${process.pid}`;
  const started = performance.now();
  await mkdir(temporary);
  const writer = new ShareWriter(temporary, outputs);
  try {
    await readAll(source, files, (share) => writer.upTo(share));
    await writer.finish();
  } finally {
    await writer.close();
  }
  await sync(temporary);
  await rename(temporary, target);
  await sync(path.dirname(target));
  return (performance.now() - started) / 1000;
}

/** Calls `onShare` with the share that has been read, without waiting for what it returns until the next call. */
async function readAll(
  dir: string,
  files: readonly FileSize[],
  onShare: (share: number) => Promise<void>,
): Promise<void> {
  const buffer = Buffer.allocUnsafe(CHUNK_BYTES);
  const total = totalBytes(files);
  let [done, writing] = [0, Promise.resolve()];
  for (const { name } of files) {
    const handle = await open(path.join(dir, name));
    try {
      for (;;) {
        const { bytesRead } = await handle.read(buffer, 0, buffer.length);
        if (bytesRead === 0) break;
        done += bytesRead;
        tell(`reading and writing ${name}, %`, Math.floor((100 * done) / total), 100);
        await writing;
        writing = onShare(done / total);
        writing.catch(() => {}); // thrown where it is waited for
      }
    } finally {
      await handle.close();
    }
  }
  await writing;
}

class ShareWriter {
  private readonly buffer = Buffer.alloc(CHUNK_BYTES, 0xa5); // not zeros: a disk may treat those specially
  private readonly handles: FileHandle[] = [];
  private readonly total: number;
  private file = 0;
  private at = 0;
  private done = 0;
  private unsynced = 0;
  private flushing: Promise<void> | undefined;

  constructor(
    private readonly dir: string,
    private readonly files: readonly FileSize[],
  ) {
    this.total = totalBytes(files);
  }

  /** Writes on until `share` of all bytes is written. */
  async upTo(share: number): Promise<void> {
    while (this.file < this.files.length) {
      const { name, bytes } = this.files[this.file] as FileSize;
      if (this.handles.length === this.file) {
        await mkdir(path.dirname(path.join(this.dir, name)), { recursive: true });
        this.handles.push(await open(path.join(this.dir, name), 'wx'));
      }
      const size = Math.min(CHUNK_BYTES, bytes - this.at, Math.floor(share * this.total) - this.done);
      if (size <= 0 && this.at < bytes) return;
      await writeFully(this.handles[this.file] as FileHandle, this.buffer.subarray(0, size), this.at);
      this.at += size;
      this.done += size;
      this.flush(size);
      if (this.at < bytes) continue;
      this.file++;
      this.at = 0;
    }
  }

  async finish(): Promise<void> {
    await this.upTo(1);
    await this.flushing;
    for (const handle of this.handles) await handle.sync();
  }

  /** As SafetensorsWriter does. */
  private flush(bytes: number): void {
    this.unsynced += bytes;
    if (this.unsynced < FLUSH_BYTES || this.flushing) return;
    this.unsynced = 0;
    this.flushing = (this.handles[this.file] as FileHandle).sync().finally(() => {
      this.flushing = undefined;
    });
    this.flushing.catch(() => {}); // a disk that fails does so again at the end
  }

  async close(): Promise<void> {
    await this.flushing?.catch(() => {});
    for (const handle of this.handles) await handle.close();
  }
}

/** Waits until every file of a directory is on the disk, so that writing it back disturbs no measurement. */
export async function settle(dir: string): Promise<void> {
  for (const { name } of await fileSizes(dir)) {
    tell(`waiting for the disk: ${name}`);
    await sync(path.join(dir, name));
  }
}

/**
 * Drops the files of a directory, which must be on the disk already, from the page cache: the next reader waits for the
 * disk. Node has no call for that; dd of GNU coreutils does (count=0 copies nothing). Throws LPQ_USAGE where there is none.
 */
export async function evict(dir: string): Promise<void> {
  for (const { name } of await fileSizes(dir))
    try {
      await promisify(execFile)('dd', [`if=${path.join(dir, name)}`, 'iflag=nocache', 'count=0', 'status=none']);
    } catch (cause) {
      throw new LpqError('LPQ_USAGE', '--cold needs the dd of GNU coreutils, which drops files from the page cache', {
        cause,
        hint: 'Install coreutils, or measure without --cold.',
      });
    }
}
