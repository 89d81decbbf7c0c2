import type { Setting } from '../config.js';
import type { Mamba2Table, MambaTable } from './mamba-table.js';

/** Blocks whose tokens are mixed by a state of fixed size instead of attention over keys and values. */
export interface RecurrentTable {
  /** Which blocks those are. */
  readonly blocks: RecurrentBlocks;
  /** The norm before the projections, and that of the branch's output. */
  readonly names: { readonly norm?: string; readonly postNorm?: string };
  /** Norms around the MLP of such blocks, where those with attention have others. */
  readonly mlp?: { readonly norm?: string; readonly postNorm?: string };
  readonly mixer: ConvTable | DeltaTable | Mamba2Table | MambaTable;
  /** What of them stays in 16 bits unless asked for otherwise, and why. */
  readonly carried: Readonly<Record<string, string>>;
}

export interface RecurrentBlocks {
  /** True: all, beside attention. */
  readonly beside?: true;
  /** What `layer_types` calls them, and what it calls blocks with attention. */
  readonly type: string | readonly string[];
  readonly attention: readonly string[];
  /** Without layer_types: a key that lists the blocks with attention; where that is absent, too, all have it. */
  readonly attentionList?: string;
  /** Without either, every so-many-th block has it. */
  readonly attentionEvery?: Setting<number>;
  /** Which of so many it is, in the place of the last. */
  readonly attentionOffset?: Setting<number>;
  /** True: there must be layer_types. */
  readonly stated?: true;
}

/** Why convolutions are carried. */
export const CONVOLUTIONS_STAY =
  'a few weights a channel, a thousandth of the block; kernels of packed weights take none';

/** Why linears that make a number or two a head of a recurrence are carried. */
export const GATES_STAY =
  'few rows, whose outputs set how fast a state forgets: an error stays in the state for as long as that lasts';

/** Why pairs of linears with a narrow middle are carried. */
export const NARROW_STAY = 'two linears with a narrow middle, a fiftieth of the block';

/** Why what else a state depends on is carried. */
export const STATES_STAY = 'a few numbers a head or a channel, read through exponentials';

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

/**
 * The gated delta rule (native/ops/recurrent.h) behind short convolutions of q, k and v with SiLU; y = output(norm(.) * act(gate)), the norm
 * over each head. Names are those of linears, but for `convs`, `rate` and `bias`.
 */
export interface DeltaTable {
  readonly kind: 'delta';
  readonly names: DeltaLinears & {
    /** One convolution of q, k and v one after another, or its channels in several tensors. */
    readonly convs: readonly string[];
    /** Tensors: the logarithm of how fast a head forgets, and what is added to `a`. */
    readonly rate: string;
    readonly bias: string;
    readonly norm: string;
    readonly output: string;
  };
  /** Keys of sizes. */
  readonly keyHeads: readonly string[];
  readonly heads: readonly string[];
  readonly keyDim: readonly string[];
  readonly valueDim: readonly string[];
  readonly taps: Setting<number>;
  readonly gateActivation: 'silu' | 'sigmoid';
  /** True: a decay each channel of a key, where otherwise each head has one. */
  readonly byChannel?: true;
  /** Shape of the tensor `rate`, undefined in the place of the heads. */
  readonly rateShape?: readonly (number | undefined)[];
  /** True: three tensors of convolutions have equal parts of the channels of all, rounded up, in the place of those of q, k and v. */
  readonly equalConvs?: boolean;
  /** Of the norm, whatever the model's other norms say. */
  readonly epsilon?: number;
  /** True: beta is up to 2, so that eigenvalues of the state's transitions may be negative. */
  readonly doubled?: Setting<boolean>;
}

/**
 * grouped: rows go by key head, those of q, k, v and the gate of each, and of b and a of each. parts: one thing after another. separate: a
 * linear each; two names are one behind another with a head's dimensions between them.
 */
export type DeltaLinears =
  | { readonly order: 'grouped'; readonly qkvGate: string; readonly ba: string }
  | { readonly order: 'parts'; readonly qkv: string; readonly gate: string; readonly b: string; readonly a: string }
  | {
      readonly order: 'separate';
      readonly q: string;
      readonly k: string;
      readonly v: string;
      readonly b: string;
      readonly gate: string | readonly [string, string];
      readonly a: string | readonly [string, string];
    };
