import { notTaken } from '../../src/core/error.js';

/** One process's part of the work, of `count`: index 0 to count - 1. */
export interface Shard {
  readonly index: number;
  readonly count: number;
}

export const SHARD_FILE = 'shard.json';

/** Where a shard of an output lies. */
export function shardPath(output: string, { index, count }: Shard): string {
  return `${output.replace(/\/+$/, '')}.shard-${index}-of-${count}`;
}

/** A shard's run of a list; all of them together are the list, in order. */
export function partOf<T>(list: readonly T[], { index, count }: Shard): T[] {
  return list.slice(Math.floor((index * list.length) / count), Math.floor(((index + 1) * list.length) / count));
}

/** '0/4'. Throws LPQ_USAGE. */
export function parseShard(given: string): Shard {
  const found = /^(\d+)\/(\d+)$/.exec(given.trim());
  const [index, count] = [Number(found?.[1]), Number(found?.[2])];
  if (found && count >= 1 && index < count && count <= 10_000) return { index, count };
  const hint = 'For four processes: 0/4, 1/4, 2/4 and 3/4.';
  throw notTaken('--shard', given, 'I/N, with I from 0 to N - 1', { hint });
}
