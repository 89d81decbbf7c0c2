import { copyFileSync, mkdirSync, mkdtempSync, readdirSync, rmSync, statSync, symlinkSync } from 'node:fs';
import os from 'node:os';
import path from 'node:path';
import { isWeightFile } from '../directory/carry.js';
import { writeError } from '../directory/write-error.js';

/** What is merged into the directories that stand for a model with its adapter. */
export interface Merge {
  readonly adapter: string;
  /** Tensors of the model that are stored as [K, N]. */
  readonly transposed: ReadonlySet<string>;
  /** The embedding's tensor, where it is the head, too. */
  readonly tied: string | undefined;
}

const merges = new Map<string, Merge>();

/** The adapter of a directory that loraDirectory made in this process; undefined for every other. */
export function mergeOf(dir: string): Merge | undefined {
  return merges.get(path.resolve(dir));
}

/**
 * A directory that stands for a model with an adapter merged into it: copies of its small files, links to its weights, which
 * SourceCheckpoint reads through the adapter. Its name is the model's, in a cache of the Hub with organisation and commit. It lies in
 * the system's directory of temporary files, and is gone when the process ends. Throws LPQ_OUTPUT_WRITE, LPQ_DISK_FULL.
 */
export function loraDirectory(base: string, merge: Merge): string {
  const whole = path.resolve(base);
  const parts = whole.split(path.sep);
  const cached = parts.at(-2) === 'snapshots' && parts.at(-3)?.startsWith('models--');
  let root: string;
  try {
    root = mkdtempSync(path.join(os.tmpdir(), 'lpq-lora-'));
  } catch (cause) {
    throw writeError(os.tmpdir(), cause);
  }
  if (merges.size === 0)
    process.once('exit', () => {
      for (const each of roots) rmSync(each, { recursive: true, force: true });
    });
  roots.add(root);
  const dir = path.join(root, ...parts.slice(cached ? -3 : -1));
  try {
    stand(whole, dir);
  } catch (cause) {
    throw writeError(dir, cause);
  }
  merges.set(dir, merge);
  return dir;
}

const roots = new Set<string>();

/** Contents of links, too, for those of a cache lead out of the directory. */
function stand(from: string, to: string): void {
  mkdirSync(to, { recursive: true });
  for (const name of readdirSync(from)) {
    const [source, target] = [path.join(from, name), path.join(to, name)];
    if (name.startsWith('.')) continue;
    const facts = statSync(source, { throwIfNoEntry: false });
    if (facts?.isDirectory()) stand(source, target);
    else if (facts?.isFile() && (!isWeightFile(name) || name.endsWith('.index.json'))) copyFileSync(source, target);
    else if (facts?.isFile()) symlinkSync(source, target);
  }
}
