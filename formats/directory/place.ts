import { accessSync, constants, existsSync, lstatSync, realpathSync, statSync } from 'node:fs';
import path from 'node:path';
import { LpqError } from '../../src/core/error.js';
import { partialPath } from './partial.js';
import { writeError } from './write-error.js';

/** Bytes of a name that file systems take. */
const MOST_BYTES = 255;
/** Of an output's: what is made beside it has longer names (.NAME.lpq-tmp-PID). */
const NAME_BYTES = 220;

/**
 * For refusing before any work: throws LPQ_OUTPUT_EXISTS when `target` exists in any form, LPQ_USAGE when it has no name or too long
 * a one, LPQ_OUTPUT_WRITE when nothing can be made where it shall lie.
 */
export function refuseExisting(target: string): void {
  if (target === '') throw new LpqError('LPQ_USAGE', 'the output has no name', { expected: 'a path' });
  const absolute = path.resolve(target);
  if (absolute.split(path.sep).some((name) => Buffer.byteLength(name) > MOST_BYTES))
    throw new LpqError('LPQ_USAGE', 'a name in the path of the output is too long', {
      expected: `at most ${MOST_BYTES} bytes`,
    });
  const bytes = Buffer.byteLength(path.basename(absolute));
  if (bytes > NAME_BYTES)
    throw new LpqError('LPQ_USAGE', 'the name of the output is too long', {
      got: `${bytes} bytes`,
      expected: `at most ${NAME_BYTES}, because files beside it have longer names`,
    });
  if (existsSync(target) || isLink(target))
    throw new LpqError('LPQ_OUTPUT_EXISTS', `the output ${target} already exists`, {
      hint: 'Choose another path, or remove it first; lpq never overwrites.',
    });
  const place = nearest(path.dirname(absolute));
  if (!statSync(place).isDirectory())
    throw new LpqError('LPQ_OUTPUT_WRITE', `${target} cannot be made: ${place} is not a directory`, {
      hint: 'Choose another output.',
    });
  try {
    accessSync(place, constants.W_OK | constants.X_OK);
  } catch (cause) {
    throw writeError(absolute, cause);
  }
}

/**
 * Refuses an output inside a directory that is read: half of itself would be carried into it, and whatever reads the directory next
 * would find it there. Likewise what is read inside the partial output, which a run may discard. Links are followed. Throws LPQ_USAGE.
 */
export function refuseInside(target: string, source: string): void {
  if (!existsSync(source) || !statSync(source).isDirectory()) return;
  const read = realpathSync(source);
  const made = real(path.resolve(target));
  if (inside(made, read))
    throw new LpqError('LPQ_USAGE', `the output ${target} lies inside ${source}, which lpq reads`, {
      hint: `Choose an output beside it, such as ${path.join(path.dirname(read), path.basename(made))}.`,
    });
  if (inside(read, real(partialPath(target))))
    throw new LpqError('LPQ_USAGE', `${source} lies inside the unfinished output of ${target}`, {
      hint: 'Choose another output.',
    });
}

/** Where a path will be: links of what exists followed. */
function real(absolute: string): string {
  const place = nearest(absolute);
  return path.join(realpathSync(place), path.relative(place, absolute));
}

function inside(place: string, directory: string): boolean {
  const relative = path.relative(directory, place);
  return relative !== '..' && !relative.startsWith(`..${path.sep}`);
}

/** The path, or the nearest of its parents that exists. */
function nearest(absolute: string): string {
  let place = absolute;
  while (!existsSync(place) && path.dirname(place) !== place) place = path.dirname(place);
  return place;
}

// A dangling link is an existing output too, though existsSync, which follows it, says no.
function isLink(target: string): boolean {
  try {
    return lstatSync(target).isSymbolicLink();
  } catch {
    return false;
  }
}
