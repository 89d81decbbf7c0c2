import { existsSync, lstatSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { mkdir, rename, rm, writeFile } from 'node:fs/promises';
import os from 'node:os';
import path from 'node:path';
import { LpqError } from '../../src/core/error.js';

/**
 * NAME.partial beside the output NAME: what a long run has finished so far.
 *
 *   journal.ndjson  what is finished; src/quantize/journal.ts
 *   owner.json      the process that writes; gone when it has stopped by itself
 *   state-STEP.safetensors  where steps on the whole model stand; src/quantize/model-state.ts
 *   output/         becomes NAME
 */
const CONTENT = 'output';
const OWNER = 'owner.json';
const JOURNAL = 'journal.ndjson';
/** And what was being written in its place when a process was killed. */
const STATE = /^(?:state-\d+\.safetensors|\.state-\d+\.safetensors\.lpq-tmp-\d+)$/;

/** What to do about a partial output that is there already. */
export type PartialMode = 'new' | 'resume' | 'restart';

/** Where the partial output of `target` lies. */
export function partialPath(target: string): string {
  return `${path.resolve(target)}.partial`;
}

/** The journal inside a partial output. */
export function journalPath(root: string): string {
  return path.join(root, JOURNAL);
}

/** For refusing before any work: throws what claimPartial would. */
export function refusePartial(target: string, mode: PartialMode): void {
  const root = partialPath(target);
  if (!exists(root)) return;
  const owner = liveOwner(root);
  if (owner !== undefined)
    throw new LpqError('LPQ_PARTIAL_IN_USE', `${root} is being written by another run`, {
      got: `process ${owner}`,
      hint: 'Wait until it ends, or choose another output.',
    });
  if (mode === 'new')
    throw new LpqError('LPQ_PARTIAL_EXISTS', `a stopped run left ${root}`, {
      hint: 'Repeat its command with --resume to continue, or with --restart to discard it.',
    });
  if (!isPartial(root))
    throw new LpqError('LPQ_PARTIAL_EXISTS', `${root} is not a partial output of lpq`, {
      hint: 'Move it, or choose another output.',
    });
}

/** Makes or takes over the partial output of `target`, whose parent exists. `found`: there was one to go on from. */
export async function claimPartial(
  target: string,
  mode: PartialMode,
): Promise<{ root: string; content: string; found: boolean }> {
  const root = partialPath(target);
  refusePartial(target, mode);
  if (mode === 'restart') await rm(root, { recursive: true, force: true });
  const found = exists(root);
  if (!found) await mkdir(root);
  try {
    // A file of its own name first: the disk may be full.
    const place = path.join(root, OWNER);
    await writeFile(`${place}.new`, `${JSON.stringify(self())}\n`);
    await rename(`${place}.new`, place);
    const content = path.join(root, CONTENT);
    await mkdir(content, { recursive: true });
    return { root, content, found };
  } catch (error) {
    if (!found) await rm(root, { recursive: true, force: true });
    throw error;
  }
}

/** The writer has stopped; what it wrote stays. */
export function releasePartial(root: string): void {
  rmSync(path.join(root, OWNER), { force: true });
}

/**
 * Removes what a run left that was killed after its output had got its name; false when that is not what happened.
 */
export async function clearFinished(target: string): Promise<boolean> {
  const root = partialPath(target);
  if (!exists(target) || !exists(root) || !isPartial(root) || existsSync(path.join(root, CONTENT))) return false;
  if (liveOwner(root) !== undefined) return false;
  await rm(root, { recursive: true, force: true });
  return true;
}

function exists(place: string): boolean {
  return lstatSync(place, { throwIfNoEntry: false }) !== undefined;
}

/** What --restart may remove: a directory with nothing in it that lpq did not put there. */
function isPartial(root: string): boolean {
  if (!lstatSync(root).isDirectory()) return false;
  return readdirSync(root).every(
    (name) => [CONTENT, OWNER, `${OWNER}.new`, JOURNAL].includes(name) || STATE.test(name),
  );
}

interface Owner {
  readonly host: string;
  readonly boot: string;
  readonly pid: number;
  /** Clock ticks after boot: process ids come back. */
  readonly started: string;
}

function self(): Owner {
  return { host: os.hostname(), boot: bootId(), pid: process.pid, started: startOf(process.pid) ?? '' };
}

/** The process that writes there now; undefined when it has ended, or ran on another machine, of which nobody can tell. */
function liveOwner(root: string): number | undefined {
  let owner: Owner;
  try {
    owner = JSON.parse(readFileSync(path.join(root, OWNER), 'utf8')) as Owner;
  } catch {
    return undefined; // it was let go of, or its process was killed while it wrote this
  }
  if (owner.host !== os.hostname() || owner.boot !== bootId()) return undefined;
  return startOf(owner.pid) === owner.started ? owner.pid : undefined;
}

function bootId(): string {
  return readProc('/proc/sys/kernel/random/boot_id')?.trim() ?? '';
}

function startOf(pid: number): string | undefined {
  // The name, second and in brackets, may hold anything; the start is the 22nd field.
  return readProc(`/proc/${pid}/stat`)?.split(') ').at(-1)?.split(' ')[19];
}

function readProc(file: string): string | undefined {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return undefined;
  }
}
