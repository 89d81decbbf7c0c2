import { existsSync, rmdirSync, rmSync } from 'node:fs';
import { mkdir, open, readdir, rename, rm, writeFile } from 'node:fs/promises';
import path from 'node:path';
import { requireWholeFiles } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { type Carried, carryFiles } from './carry.js';
import { factsOf } from './facts.js';
import { claimPartial, type PartialMode, releasePartial } from './partial.js';
import { refuseExisting, refuseInside } from './place.js';
import { clearAbandoned, makeTemporary } from './temporary.js';
import { writeError } from './write-error.js';

/**
 * A directory that appears complete or not at all: everything goes to a hidden sibling (.NAME.lpq-tmp-PID, see temporary.ts), which
 * commit() syncs and renames. abort() removes it; after either the object is spent. An output of a long run goes to a
 * visible sibling instead (NAME.partial, see partial.ts), which abort() leaves in place while `keep` is set.
 */
export class OutputDirectory {
  private done = false;
  /** abort() leaves what there is, for a later run to go on from. */
  keep = false;

  private constructor(
    /** Where the result will be. */
    readonly target: string,
    /** Where to write until commit(). */
    readonly path: string,
    /** Parents that had to be made, outermost first, to be removed again on abort. */
    private readonly madeParents: readonly string[],
    /** What abort() removes: the temporary or partial directory that `path` lies in. */
    readonly root: string,
    /** Temporary directories that killed runs had left, and that were removed. */
    readonly cleared: readonly string[] = [],
    private readonly release: () => void = () => {},
  ) {}

  /** Throws LPQ_OUTPUT_EXISTS when `target` exists in any form, LPQ_OUTPUT_WRITE when it cannot be made. */
  static async create(target: string): Promise<OutputDirectory> {
    refuseExisting(target);
    const absolute = path.resolve(target);
    const made: string[] = [];
    try {
      await makeParents(path.dirname(absolute), made);
      const cleared = clearAbandoned(absolute);
      const { root, content, release } = makeTemporary(absolute);
      return new OutputDirectory(absolute, content, made, root, cleared, release);
    } catch (cause) {
      removeEmpty(made);
      throw writeError(absolute, cause);
    }
  }

  /**
   * The same in NAME.partial/output, which outlives the process: with 'resume' one that a stopped run left is taken up
   * (and kept, until told otherwise), with 'restart' it is discarded, with 'new' refused. Throws also
   * LPQ_PARTIAL_EXISTS and LPQ_PARTIAL_IN_USE.
   */
  static async createPartial(target: string, mode: PartialMode = 'new'): Promise<OutputDirectory> {
    refuseExisting(target);
    const absolute = path.resolve(target);
    const made: string[] = [];
    try {
      await makeParents(path.dirname(absolute), made);
      const { root, content, found } = await claimPartial(absolute, mode);
      const output = new OutputDirectory(absolute, content, made, root);
      output.keep = found;
      await sync(root);
      await sync(path.dirname(root));
      return output;
    } catch (cause) {
      removeEmpty(made);
      throw writeError(absolute, cause);
    }
  }

  /** Copies what is not a weight from a model directory; see carryFiles. Throws LPQ_USAGE where this output lies inside it. */
  async carryFrom(source: string, options: { except?: readonly string[] } = {}): Promise<Carried> {
    refuseInside(this.target, source);
    return carryFiles(source, this.path, options.except ?? []);
  }

  /** Writes a small file, replacing one that was carried. `name` may have subdirectories. */
  async writeFile(name: string, data: string | Uint8Array): Promise<void> {
    const file = path.join(this.path, name);
    try {
      await mkdir(path.dirname(file), { recursive: true });
      await writeFile(file, data);
    } catch (cause) {
      throw writeError(path.join(this.target, name), cause);
    }
  }

  /** JSON with two spaces of indentation and a final newline: the form of every JSON file lpq writes. */
  writeJson(name: string, value: unknown): Promise<void> {
    return this.writeFile(name, `${JSON.stringify(value, null, 2)}\n`);
  }

  /** Removes all but the named files at the top: what a run that takes up another's output writes anew. */
  async removeAllBut(names: readonly string[]): Promise<void> {
    try {
      for (const name of await readdir(this.path))
        if (!names.includes(name)) await rm(path.join(this.path, name), { recursive: true, force: true });
    } catch (cause) {
      throw writeError(this.target, cause);
    }
  }

  /** Paths of all files so far, relative, sorted. */
  files(): Promise<string[]> {
    return listFiles(this.path);
  }

  /**
   * Syncs every file and directory, then renames. Aborts when that fails. Throws LPQ_OUTPUT_EXISTS when the
   * target has appeared meanwhile, LPQ_DISK_FULL, LPQ_OUTPUT_WRITE.
   */
  async commit(): Promise<void> {
    if (this.done) throw new LpqError('LPQ_INTERNAL', `${this.target} was committed or aborted before`);
    try {
      requireWholeFiles();
      const directories = new Set([this.path]);
      for (const file of await this.files()) {
        await sync(path.join(this.path, file));
        for (let dir = path.dirname(file); dir !== '.'; dir = path.dirname(dir))
          directories.add(path.join(this.path, dir));
      }
      for (const dir of directories) await sync(dir);
      // rename() would replace an empty directory silently.
      refuseExisting(this.target);
      await rename(this.path, this.target);
      this.done = true;
      await sync(path.dirname(this.target));
      this.release();
      await rm(this.root, { recursive: true, force: true });
    } catch (cause) {
      await this.abort();
      throw writeError(this.target, cause);
    }
  }

  /** Removes what was written, unless it is to be kept. Harmless after commit() and when called twice. */
  async abort(): Promise<void> {
    if (this.done) return;
    this.done = true;
    this.release();
    if (this.keep) return releasePartial(this.root);
    await rm(this.root, { recursive: true, force: true });
    removeEmpty(this.madeParents);
  }

  /** The same for process.on('exit'), where nothing asynchronous runs any more. */
  abortSync(): void {
    if (this.done) return;
    this.done = true;
    this.release();
    if (this.keep) {
      releasePartial(this.root);
      return;
    }
    rmSync(this.root, { recursive: true, force: true });
    removeEmpty(this.madeParents);
  }
}

/**
 * mkdir -p; adds each directory that was not there to `made`. Node's own never returns where the system says ENOENT for
 * a directory whose parent exists, as below /proc.
 */
async function makeParents(dir: string, made: string[]): Promise<void> {
  if (existsSync(dir)) return;
  await makeParents(path.dirname(dir), made);
  try {
    await mkdir(dir);
    made.push(dir);
  } catch (cause) {
    // Another process may have made it meanwhile; then it is not ours to remove.
    if ((cause as NodeJS.ErrnoException).code !== 'EEXIST') throw cause;
  }
}

function removeEmpty(made: readonly string[]): void {
  try {
    for (const dir of [...made].reverse()) rmdirSync(dir);
  } catch {
    // Somebody else put something there; then it is theirs to keep.
  }
}

/** Relative paths of the files below `dir`, links to files (as in the Hub's cache) among them, sorted by code unit, with / between names. */
export async function listFiles(dir: string): Promise<string[]> {
  const found = await readdir(dir, { recursive: true, withFileTypes: true });
  return found
    .filter((entry) => entry.isFile() || (entry.isSymbolicLink() && isFile(path.join(entry.parentPath, entry.name))))
    .map((entry) => path.relative(dir, path.join(entry.parentPath, entry.name)).split(path.sep).join('/'))
    .sort();
}

function isFile(place: string): boolean {
  return factsOf(place)?.isFile() ?? false;
}

/** Flushes a file or a directory's entries to the disk. */
export async function sync(place: string): Promise<void> {
  const handle = await open(place, 'r');
  try {
    await handle.sync();
  } finally {
    await handle.close();
  }
}
