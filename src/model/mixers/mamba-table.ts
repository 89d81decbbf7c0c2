import type { Setting } from '../config.js';

/** Keys of config.json that both kinds of state space have. */
interface StateSpaceKeys {
  readonly size: readonly string[];
  readonly taps: Setting<number>;
  readonly convBias: Setting<boolean>;
  /** How many times the hidden size the channels are, where nothing else says. */
  readonly expand: Setting<number>;
}

/**
 * A state space with one step a head (Mamba-2, native/ops/recurrent.h): `input` makes a gate z, x, B, C and the steps one after another;
 * x, B and C go through a short convolution with SiLU; y = output(gated(scan)), which is norm(y * silu(z)), norm(y) * silu(z), or y *
 * silu(z) without a norm. Names but those of linears, the convolution and the norm are tensors'.
 */
export interface Mamba2Table extends StateSpaceKeys {
  readonly kind: 'mamba2';
  readonly names: {
    readonly input: string;
    readonly conv: string;
    readonly rate: string;
    readonly bias: string;
    readonly skip: string;
    readonly norm: string;
    readonly output: string;
  };
  readonly heads: readonly string[];
  /** 'auto': the channels over the heads. */
  readonly headDim: readonly string[];
  /** Heads that share B and C. */
  readonly groups: readonly string[];
  /** Keys of the channels of all heads, where the class has one. */
  readonly channels?: readonly string[];
  readonly bias: { readonly input: Setting<boolean>; readonly output: Setting<boolean> };
  /** The least step, or a list of the least and the most. */
  readonly limit: { readonly least: Setting<number> } | { readonly list: string };
  readonly norm: {
    readonly enabled: Setting<boolean>;
    /** True: before the gate. */
    readonly first: Setting<boolean>;
    /** True: over the channels of each group, otherwise over all. */
    readonly grouped: boolean;
  };
  /** What multiplies the input, and z, x, B, C and the steps, in a list. */
  readonly multipliers?: {
    readonly input: Setting<number>;
    readonly parts: string;
  };
}

/**
 * A state space with a step a channel (Mamba): `input` makes x and a gate z; x goes through a short convolution with SiLU, of which
 * `select` makes a narrow step, B and C, each behind a norm, and `step` widens the first. y = output(scan * silu(z)).
 */
export interface MambaTable extends StateSpaceKeys {
  readonly kind: 'mamba';
  readonly names: {
    readonly input: string;
    readonly conv: string;
    readonly select: string;
    readonly step: string;
    readonly rate: string;
    readonly skip: string;
    readonly stepNorm: string;
    readonly bNorm: string;
    readonly cNorm: string;
    readonly output: string;
  };
  /** Of the narrow step; 'auto': a 16th of the hidden size, rounded up. */
  readonly rank: readonly string[];
  /** Of `input` and `output`. */
  readonly bias: Setting<boolean>;
}
