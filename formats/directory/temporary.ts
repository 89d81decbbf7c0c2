import { closeSync, mkdirSync, openSync, readdirSync, rmSync } from 'node:fs';
import path from 'node:path';
import { addon } from '../../native/binding.js';

/** The lock that the owner of a temporary directory holds while it lives, and where its contents lie. */
const LOCK = 'owner.lock';
const CONTENT = 'output';

/** A hidden directory beside an output, which becomes the output: .NAME.lpq-tmp-PID/output. */
export interface Temporary {
  readonly root: string;
  readonly content: string;
  /** Ends the ownership; the directory stays. */
  release(): void;
}

/**
 * Makes one for `target`, whose parent exists. The lock ends with the process, however that comes about, in containers too, where
 * process ids say nothing of each other. Throws the system's error.
 */
export function makeTemporary(target: string): Temporary {
  const stem = `${prefixOf(target)}${process.pid}`;
  // A namesake may belong to a live process of another container with the same process id: leave it alone.
  for (let attempt = 0; ; attempt++) {
    const root = attempt === 0 ? stem : `${stem}-${attempt}`;
    try {
      mkdirSync(root);
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EEXIST') continue;
      throw error;
    }
    const fd = openSync(path.join(root, LOCK), 'wx');
    addon().tryLock(fd);
    const content = path.join(root, CONTENT);
    mkdirSync(content);
    let open = true;
    return {
      root,
      content,
      release() {
        if (open) closeSync(fd);
        open = false;
      },
    };
  }
}

/** Removes the temporary directories of `target` whose process has ended, and gives their paths. */
export function clearAbandoned(target: string): string[] {
  const prefix = path.basename(prefixOf(target));
  const parent = path.dirname(target);
  const cleared: string[] = [];
  for (const name of readdirSync(parent)) {
    if (!name.startsWith(prefix) || !/^\d+(-\d+)?$/.test(name.slice(prefix.length))) continue;
    const root = path.join(parent, name);
    if (!abandoned(root)) continue;
    rmSync(root, { recursive: true, force: true });
    cleared.push(root);
  }
  return cleared;
}

function prefixOf(target: string): string {
  return path.join(path.dirname(target), `.${path.basename(target)}.lpq-tmp-`);
}

/** Whether nobody holds the lock; where the file system has no locks, or none is there yet, nobody can tell. */
function abandoned(root: string): boolean {
  let fd: number;
  try {
    fd = openSync(path.join(root, LOCK), 'r+');
  } catch {
    return false;
  }
  try {
    return addon().tryLock(fd) === 'held';
  } catch {
    return false;
  } finally {
    closeSync(fd);
  }
}
