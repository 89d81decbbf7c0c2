import { LpqError } from '../core/error.js';

/** A model of the Hub at a branch, tag or commit. */
export interface ModelName {
  /** ORG/NAME */
  readonly id: string;
  readonly revision: string;
}

// Both parts as the Hub allows them; a path has a dot, a slash or a tilde in front, or more than one slash.
const PART = '[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9_])?';
const NAME = new RegExp(`^(${PART}/${PART})(?:@(.*))?$`, 's');
const REVISION = /^[A-Za-z0-9][A-Za-z0-9._+/-]*$/;
const LONGEST = 96;

/**
 * Reads ORG/NAME[@REVISION]; undefined for what cannot be one. Throws LPQ_USAGE for a revision that is none: it becomes a
 * path below the cache.
 */
export function parseModelName(text: string): ModelName | undefined {
  const match = NAME.exec(text);
  const id = match?.[1];
  if (id === undefined || id.length > LONGEST || /--|\.\.|\.git$/.test(id)) return undefined;
  const revision = match?.[2] ?? 'main';
  if (revision.length <= 255 && REVISION.test(revision) && revision.split('/').every(isPlain)) return { id, revision };
  throw new LpqError('LPQ_USAGE', `'${text}' has no revision after the @`, {
    got: JSON.stringify(revision),
    expected: 'a branch, a tag, refs/pr/N or a commit',
  });
}

/** ORG/NAME@REVISION, without main. */
export function printModelName({ id, revision }: ModelName): string {
  return revision === 'main' ? id : `${id}@${revision}`;
}

/** A part of a path that names something below where it stands. */
export function isPlain(part: string): boolean {
  // biome-ignore lint/suspicious/noControlCharactersInRegex: they are what is looked for
  return part !== '' && part !== '.' && part !== '..' && !/[\\\x00-\x1f\x7f]/.test(part) && part.length <= 255;
}
