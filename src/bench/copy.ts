import { execFile } from 'node:child_process';
import { mkdir, open, rename } from 'node:fs/promises';
import path from 'node:path';
import { promisify } from 'node:util';
import { sync } from '../../formats/directory/output-directory.js';
import { writeFully } from '../../formats/safetensors/tensor-slot.js';
import { LpqError } from '../core/error.js';
import { type FileSize, fileSizes } from './directory.js';

const CHUNK_BYTES = 2 ** 23;

/**
 * What a quantizer would take that computed nothing: reads every file of `source` and, at the same time, writes files of
 * the given names and sizes to `target`, with the syncs and the rename of a real output. Returns the seconds.
 */
export async function copyLike(source: string, target: string, outputs: readonly FileSize[]): Promise<number> {
  const files = await fileSizes(source);
  const temporary = `${target}.lpq-tmp-${process.pid}`;
  const started = performance.now();
  await mkdir(temporary);
  await Promise.all([readAll(source, files), writeAll(temporary, outputs)]);
  await sync(temporary);
  await rename(temporary, target);
  await sync(path.dirname(target));
  return (performance.now() - started) / 1000;
}

async function readAll(dir: string, files: readonly FileSize[]): Promise<void> {
  const buffer = Buffer.allocUnsafe(CHUNK_BYTES);
  for (const { name } of files) {
    const handle = await open(path.join(dir, name));
    try {
      while ((await handle.read(buffer, 0, buffer.length)).bytesRead > 0);
    } finally {
      await handle.close();
    }
  }
}

async function writeAll(dir: string, files: readonly FileSize[]): Promise<void> {
  const buffer = Buffer.alloc(CHUNK_BYTES, 0xa5); // not zeros: a disk may treat those specially
  for (const { name, bytes } of files) {
    await mkdir(path.dirname(path.join(dir, name)), { recursive: true });
    const handle = await open(path.join(dir, name), 'wx');
    try {
      for (let at = 0; at < bytes; at += CHUNK_BYTES)
        await writeFully(handle, buffer.subarray(0, Math.min(CHUNK_BYTES, bytes - at)), at);
      await handle.sync();
    } finally {
      await handle.close();
    }
  }
}

/** Waits until every file of a directory is on the disk, so that writing it back disturbs no measurement. */
export async function settle(dir: string): Promise<void> {
  for (const { name } of await fileSizes(dir)) await sync(path.join(dir, name));
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
