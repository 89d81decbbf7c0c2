import { mkdtemp, rm, stat, statfs } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { listFiles } from '../formats/directory/output-directory.js';
import { LpqError } from '../src/core/error.js';

export interface WorkDirectory {
  readonly dir: string;
  /** Takes a temporary one away with all it holds; leaves one that is kept alone. */
  remove(): Promise<void>;
}

/** A directory for a benchmark's files: `keep`, or a temporary one. */
export async function workDirectory(keep: string | undefined): Promise<WorkDirectory> {
  if (keep !== undefined) return { dir: path.resolve(keep), remove: async () => {} };
  const dir = await mkdtemp(path.join(tmpdir(), 'lpq-bench-'));
  return { dir, remove: () => rm(dir, { recursive: true, force: true }) };
}

export interface FileSize {
  readonly name: string;
  readonly bytes: number;
}

/** All files below a directory, by relative path. */
export async function fileSizes(dir: string): Promise<FileSize[]> {
  const names = await listFiles(dir);
  return Promise.all(names.map(async (name) => ({ name, bytes: (await stat(path.join(dir, name))).size })));
}

export function totalBytes(files: readonly FileSize[]): number {
  return files.reduce((sum, { bytes }) => sum + bytes, 0);
}

/** Throws LPQ_DISK_FULL when less than `bytes` are free where `dir`, which exists, lies. */
export async function requireSpace(dir: string, bytes: number): Promise<void> {
  const { bavail, bsize } = await statfs(dir);
  if (bavail * bsize >= bytes) return;
  throw new LpqError('LPQ_DISK_FULL', `${dir} has no room for the benchmark's files`, {
    got: `${bavail * bsize} bytes`,
    expected: `${bytes} bytes`,
    hint: 'Make a smaller checkpoint, or choose another disk with --keep.',
  });
}
