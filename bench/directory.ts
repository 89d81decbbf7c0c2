import { createHash } from 'node:crypto';
import { mkdtemp, readFile, rm, stat, statfs, truncate } from 'node:fs/promises';
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

/** Gives the disk back what a file takes; its size stays. */
export async function emptied(file: string): Promise<void> {
  const { size } = await stat(file);
  await truncate(file, 0);
  await truncate(file, size);
}

/** One hash of all tensors of a canonical checkpoint, from those that lpq.json has of each: equal for equal tensors. */
export async function weightsHash(dir: string): Promise<string> {
  const { modules, carried } = JSON.parse(await readFile(path.join(dir, 'lpq.json'), 'utf8')) as {
    modules: Readonly<Record<string, { readonly sha256: Readonly<Record<string, string>> }>>;
    carried: Readonly<Record<string, string>>;
  };
  const lines = Object.entries(modules).flatMap(([name, { sha256 }]) =>
    Object.entries(sha256).map(([part, hash]) => `${name}.${part} ${hash}`),
  );
  const others = Object.entries(carried).map(([name, hash]) => `${name} ${hash}`);
  return createHash('sha256')
    .update([...lines, ...others].sort().join('\n'))
    .digest('hex');
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
