import type { KvScheme } from './scheme.js';

/** What tells one form of a cache from another. Where its bytes lie src/kv and the verifier say, each for itself. */
export interface KvFormFacts {
  /** The newest tokens may stay exact, up to `residual`; else every token is packed as it comes. */
  readonly tail: boolean;
  /** One scale and zero a token and head: there is no choice of groups. */
  readonly wholeHeads: boolean;
  /** A page is one block of bytes; else keys, values and the numbers of each are a tensor. */
  readonly oneBlock: boolean;
  /** Heads may stand outside tokens, and one page may hold a whole sequence. */
  readonly contiguous: boolean;
  /** Least tokens of a page that kernels read. */
  readonly leastPage: number;
}

/** Least and most dims of heads that kernels read, multiples of 8. */
export const KV_HEAD_DIMS = [64, 512] as const;

/**
 * Dims of a head as a cache holds them: 64, 128, 256 or 512, the least that suffice, with zeros behind the head's own. Heads of fewer
 * than 64 dims or more than 512 are stored as they are, and no kernel reads them.
 */
export const kvStoredDims = (headDim: number): number =>
  headDim <= 64 ? headDim : ([128, 256, 512].find((dims) => headDim <= dims) ?? headDim);

export const KV_FORMS: Readonly<Record<KvScheme['form'], KvFormFacts>> = {
  bitdecoding: { tail: true, wholeHeads: false, oneBlock: false, contiguous: true, leastPage: 1 },
  turbomind: { tail: false, wholeHeads: true, oneBlock: true, contiguous: false, leastPage: 64 },
};
