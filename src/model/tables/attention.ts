import type { Setting } from '../config.js';
import type { BlockIndexerTable } from '../plan-indexer.js';
import type { RopeTable } from './rope.js';

/** One linear each for q, k and v, or one for all: 'parts' has the rows of q, k and v one after another, 'heads' those of each head. */
type ProjectionNames =
  | { readonly q: string; readonly k: string; readonly v: string }
  | { readonly qkv: string; readonly order: 'parts' | 'heads' };

/** Grouped-query attention. */
export interface AttentionTable {
  readonly names: ProjectionNames & {
    /** Before the projections; none where only the branch's output is normalised. */
    readonly norm?: string;
    /** Of the branch's output, before it is added. */
    readonly postNorm?: string;
    readonly o: string;
    /** Norms of q and k, applied before the rotation. */
    readonly qNorm?: string;
    readonly kNorm?: string;
    /** A tensor [heads] of logits that take part in each head's softmax without a value. */
    readonly sinks?: string;
  };
  /** True: only blocks with a window have sinks. */
  readonly slidingSinks?: true;
  /** How many times as many heads of keys and values blocks with a window have. */
  readonly slidingKvHeads?: number;
  /** Keys of the dimensions of a head's value, where they may differ from those of its key. */
  readonly valueDim?: readonly string[];
  /** Blocks without a window have sizes of their own. */
  readonly full?: FullAttentionTable;
  /** True: values go through an RMS norm of each head without a weight. */
  readonly valueNorm?: true;
  /** Key of how many blocks come last that read the keys and values of the last block before them with (or without) a window. */
  readonly sharedKv?: Setting<number>;
  /** True: q has, head by head, as many rows more, whose sigmoid multiplies what attention makes. */
  readonly outputGate?: true;
  /** Multiplies values; an explicit null is 1. */
  readonly valueScale?: Setting<number>;
  readonly headNorm?: HeadNormTable;
  readonly bias: {
    readonly q: Setting<boolean>;
    readonly k: Setting<boolean>;
    readonly v: Setting<boolean>;
    readonly o: Setting<boolean>;
  };
  /** Dimensions of a head where the config does not say (null: always the quotient): a number, or hidden_size / num_attention_heads. */
  readonly headDim: number | 'hidden/heads';
  readonly scale?: ScaleTable;
  /** c: scores are c * tanh(score / c); an explicit null is none. */
  readonly softCap?: Setting<number>;
  /** None: positions are learned, or not told. */
  readonly rope?: RopeTable;
  readonly window: WindowTable;
  /** Queries that grow with their position. */
  readonly temperature?: TemperatureTable;
  /** Present where tokens of some blocks see only runs of keys that an indexer chooses. */
  readonly indexer?: BlockIndexerTable;
  /** Blocks that see only their chunk of so many tokens: those of chunked_attention in layer_types, without it those that rotate. */
  readonly chunk?: Setting<number>;
}

/** Sizes of blocks without a window. */
export interface FullAttentionTable {
  /** Key of an object of settings by block index, which counts alone where it is present; head_dim and num_key_value_heads are read. */
  readonly byBlock: string;
  readonly headDim: Setting<number>;
  /** A key that counts where `keysAsValues` holds. */
  readonly kvHeads: string;
  /** True: no linear makes values, which are what that of keys made, before its norm. */
  readonly keysAsValues: Setting<boolean>;
}

/** Norms of q and k. */
export interface HeadNormTable {
  /**
   * What they run over: each head with one weight [headDim] (the default), each head with weights of its own [heads, headDim], or a
   * tensor each where the name holds {head}, or all heads together [heads * headDim].
   */
  readonly over?: 'head' | 'own-head' | 'all';
  readonly enabled?: Setting<boolean>;
  /** False: LayerNorms without a bias, whatever the model's norms have. */
  readonly bias?: false;
  /** True: applied after the rotation. */
  readonly afterRotation?: true;
  /** True: RMS norms without a weight, of the blocks that rotate. */
  readonly bare?: true;
}

/** A query at position p is multiplied by 1 + beta * ln(1 + floor((p + offset) / length)); no beta: by nothing. */
export interface TemperatureTable {
  /** 'rope': the keys stand in rope_parameters. */
  readonly from?: 'rope';
  /** False: none. Numbers count as true, but for 0. */
  readonly enabled?: { readonly keys: readonly string[]; readonly otherwise: boolean };
  /** True: only in blocks that rotate nothing. */
  readonly unrotated?: true;
  readonly beta: Setting<number>;
  readonly length: Setting<number>;
  readonly offset: number;
}

/** What multiplies q kᵀ: 1 / sqrt(headDim) unless this says otherwise. */
export interface ScaleTable {
  /** 1 / sqrt of this number. */
  readonly rootOf?: Setting<number>;
  /** This number itself. */
  readonly factor?: Setting<number>;
  /** More factors. */
  readonly times?: readonly Setting<number>[];
  /** False: 1. */
  readonly enabled?: Setting<boolean>;
  /** True: divided by the index of the block, counted from 1. */
  readonly byLayer?: Setting<boolean>;
}

/** Which blocks see only a sliding window of `sliding_window` tokens, the own one included. */
export interface WindowTable {
  /** False: no block, whatever `sliding_window` says. */
  readonly enabled: Setting<boolean>;
  /** The size where the key is absent; an explicit null or 0 means none. */
  readonly otherwise: number | null;
  /** The first blocks, this many, have no window. */
  readonly fullBlocks: Setting<number>;
  /** Every so-many-th block has no window. */
  readonly fullEvery?: Setting<number>;
  /** True: `layer_types` (sliding_attention, full_attention), where present, decides block by block. */
  readonly layerTypes: boolean;
  /** Where `layer_types` does not decide: every second block has the window, the first one included, up to so many blocks. */
  readonly alternateUpTo?: Setting<number>;
  /** True: the last block has none, whatever `layer_types` says. */
  readonly lastFull?: true;
  /** True: where `layer_types` does not decide, the blocks that rotate nothing have the window, and no other. */
  readonly unrotated?: true;
}
