import type { Setting } from '../config.js';

/** Blocks whose tokens are mixed by a state of fixed size instead of attention over keys and values. */
export interface RecurrentTable {
  /** Which blocks those are. */
  readonly blocks: RecurrentBlocks;
  /** The norm before the projections, and that of the branch's output. */
  readonly names: { readonly norm?: string; readonly postNorm?: string };
  readonly mixer: ConvTable;
  /** What of them stays in 16 bits unless asked for otherwise, and why. */
  readonly carried: Readonly<Record<string, string>>;
}

export interface RecurrentBlocks {
  /** What `layer_types` calls them, and what it calls blocks with attention. */
  readonly type: string;
  readonly attention: readonly string[];
  /** Without layer_types: a key that lists the blocks with attention; where that is absent, too, all have it. */
  readonly attentionList?: string;
}

/** Why convolutions are carried. */
export const CONVOLUTIONS_STAY =
  'a few weights a channel, a thousandth of the block; kernels of packed weights take none';

/**
 * A gated short convolution (LFM2): y = output(c * conv(b * x)), where input gives b, c and x one after another.
 */
export interface ConvTable {
  readonly kind: 'conv';
  readonly names: { readonly input: string; readonly conv: string; readonly output: string };
  /** Tokens that it sees, the own one included. */
  readonly taps: Setting<number>;
  /** Of the two linears and the convolution. */
  readonly bias: Setting<boolean>;
}
