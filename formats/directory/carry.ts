import { constants, type Dirent, realpathSync, statSync } from 'node:fs';
import { copyFile, mkdir, readdir } from 'node:fs/promises';
import path from 'node:path';
import { tell } from '../../src/core/activity.js';
import { LpqError } from '../../src/core/error.js';
import { writeError } from './write-error.js';

/** What carryFiles did, relative paths; `skipped` is for telling the user, for nothing may be lost in silence. */
export interface Carried {
  readonly carried: readonly string[];
  readonly skipped: readonly { readonly file: string; readonly reason: string }[];
}

// Weights in any container, and the indices over them: what is written anew, or would double the size of the output.
const WEIGHTS = /\.(safetensors|bin|pt|pth|ckpt|pkl|msgpack|h5|onnx|onnx_data|gguf)$|\.index\.json$/i;

/**
 * Copies every file of a model directory that is not a weight (tokenizer, templates, generation and processor configs,
 * .py files), with its subdirectories. Skips dotfiles, the top-level names in `except`, and links that leave the model,
 * save those of a Hugging Face cache, whose snapshots are links into the cache's own blobs.
 * Throws LPQ_FILE when the source cannot be read; LPQ_DISK_FULL, LPQ_OUTPUT_WRITE when the copy cannot be written.
 */
export async function carryFiles(source: string, target: string, except: readonly string[]): Promise<Carried> {
  const carried: string[] = [];
  const skipped: { file: string; reason: string }[] = [];
  const top = await list(source);
  const homes = ownHomes(source);

  const visit = async (relative: string, entries: readonly Dirent[]): Promise<void> => {
    for (const entry of entries) {
      const file = relative ? `${relative}/${entry.name}` : entry.name;
      if (entry.name.startsWith('.') || except.includes(file)) continue;
      const place = path.join(source, file);
      if (entry.isDirectory()) {
        const below = await list(place);
        // A model that was quantized into a directory inside itself.
        if (below.some(({ name }) => name === 'lpq.json')) skipped.push({ file, reason: 'an output of lpq' });
        else await visit(file, below);
      } else if (WEIGHTS.test(entry.name)) skipped.push({ file, reason: 'weights' });
      else if (!entry.isFile() && !entry.isSymbolicLink()) skipped.push({ file, reason: 'not a regular file' });
      else {
        const reason = entry.isSymbolicLink() ? linkProblem(place, homes) : undefined;
        if (reason) skipped.push({ file, reason });
        else {
          tell(`copying ${file}`);
          await copy(place, path.join(target, file));
          carried.push(file);
        }
      }
    }
  };
  await visit('', top);
  return { carried, skipped };
}

/** Whether a file name is that of a weight file, which carryFiles leaves out. */
export function isWeightFile(name: string): boolean {
  return WEIGHTS.test(name);
}

async function list(dir: string): Promise<Dirent[]> {
  try {
    const entries = await readdir(dir, { withFileTypes: true });
    return entries.sort((a, b) => (a.name < b.name ? -1 : 1));
  } catch (cause) {
    throw new LpqError('LPQ_FILE', `${dir} cannot be read: ${(cause as Error).message}`, { cause });
  }
}

function ownHomes(source: string): string[] {
  const real = realpathSync(source);
  const snapshots = path.dirname(real);
  if (path.basename(snapshots) !== 'snapshots') return [real];
  const repository = path.dirname(snapshots);
  const homes = [real, path.join(repository, 'blobs')];
  // Since its version 2 huggingface_hub may keep contents once for all repositories of a cache.
  return path.basename(repository).startsWith('models--')
    ? [...homes, path.join(path.dirname(repository), 'blobs')]
    : homes;
}

function linkProblem(place: string, homes: readonly string[]): string | undefined {
  let real: string;
  try {
    real = realpathSync(place);
  } catch {
    return 'a link to nothing';
  }
  if (!homes.some((home) => real.startsWith(home + path.sep))) return 'a link out of the model directory';
  return statSync(real).isFile() ? undefined : 'a link to something that is not a file';
}

async function copy(from: string, to: string): Promise<void> {
  try {
    await mkdir(path.dirname(to), { recursive: true });
    await copyFile(from, to, constants.COPYFILE_FICLONE);
  } catch (cause) {
    if ((cause as NodeJS.ErrnoException).syscall === 'open' || (cause as NodeJS.ErrnoException).code === 'EACCES')
      throw new LpqError('LPQ_FILE', `${from} cannot be copied: ${(cause as Error).message}`, { cause });
    throw writeError(to, cause);
  }
}
