import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { splitOf } from './parallel.js';

/** A packed block: outputs by input features. Parts of whole blocks are runs of a packed tensor's bytes, or of its rows. */
const BLOCK = { n: 32, k: 128 } as const;
const COUNTS = [2, 4, 8, 16] as const;

export interface Sharing {
  /** Ranks of tensor parallelism that can take their parts of a pack that was made for one. */
  readonly ranks: readonly number[];
  /** The least number that cannot, and why. */
  readonly limit: { readonly count: number; readonly why: string } | undefined;
}

/**
 * By how many ranks packed modules can be shared as they lie: those shared by output features in multiples of 32 of them, those by
 * input features in multiples of 128. Each expert is a module of its own: ranks of expert parallelism take those that are theirs.
 */
export function sharingOf(
  checkpoint: Pick<CanonicalCheckpoint, 'module' | 'config'>,
  modules: readonly string[],
): Sharing {
  const ranks: number[] = [];
  let limit: Sharing['limit'];
  for (const count of COUNTS) {
    const why = modules.map((name) => problem(checkpoint, name, count)).find((each) => each !== undefined);
    if (why === undefined) ranks.push(count);
    else limit ??= { count, why };
  }
  return { ranks, limit };
}

/** One line for people. */
export function printSharing({ ranks, limit }: Sharing): string {
  const can =
    ranks.length > 0
      ? `${ranks.join(', ')} ranks can share it in whole blocks`
      : 'ranks cannot share it in whole blocks';
  return `tensor parallelism: ${can}${limit ? `; ${limit.count}: ${limit.why}` : ''}`;
}

function problem(checkpoint: Parameters<typeof sharingOf>[0], name: string, count: number): string | undefined {
  const split = splitOf(checkpoint, name, count);
  if ('whole' in split) return /^(it is of a|')/.test(split.whole) ? undefined : `'${name}': ${split.whole}`;
  const [n, k] = checkpoint.module(name).shape;
  const [size, block] = split.split === 'n' ? [n / count, BLOCK.n] : [k / count, BLOCK.k];
  return size % block === 0 ? undefined : `'${name}' has parts of ${size}, no multiple of ${block}`;
}
