import type { Setting } from '../config.js';

/**
 * Per-layer embeddings: every token has a vector of `size` numbers for each block i, p_i = (norm(linear(h)_i / sqrt(hidden)) +
 * table[id]_i * sqrt(size)) / sqrt(2) of the embedding h, and the block ends in h += postNorm(back(act(gate h) * p_i)). Names of the
 * block; those outside are among `names`. Size 0: none.
 */
export interface PerLayerTable {
  readonly size: Setting<number>;
  readonly vocab: Setting<number>;
  readonly gate: string;
  readonly back: string;
  readonly postNorm: string;
}

/** An object in config.json, with the model_type inside it that the table is for; `flat`: older files have its keys outside. */
export interface TextTable {
  readonly key: string;
  readonly modelType: string;
  readonly flat?: true;
}

/** rms: x / rms(x) * (weight + offset). layer: (x - mean) / deviation * weight + bias. */
export interface NormTable {
  readonly kind: 'rms' | 'layer';
  readonly epsilon: Setting<number>;
  /** Added to the stored weight (Gemma, Nemotron: 1). */
  readonly offset?: number;
  /** Of LayerNorms: whether they have a bias, and whether they have a weight at all. */
  readonly bias?: Setting<boolean>;
  readonly affine?: Setting<boolean>;
}

export interface EmbeddingTable {
  /** Multiplies embeddings; the square root of hidden_size, or a number. */
  readonly scale?: 'root-hidden' | Setting<number>;
  /** Keys of the embedding's width where it may differ from the hidden size. */
  readonly width?: readonly string[];
  /** Row of the learned positions that position 0 reads; so many rows come before the first. */
  readonly firstPosition?: number;
}

/** How branches (attention, MLP) come back into the residual stream h. */
export interface ResidualTable {
  /** h += multiplier * branch(h). */
  readonly multiplier?: Setting<number>;
  /** Of attention and of a recurrent layer beside it, where they have their own. */
  readonly mixers?: { readonly attention: Setting<number>; readonly recurrent: Setting<number> };
  /** True: attention and MLP both read the h that entered the block. */
  readonly parallel?: Setting<boolean>;
  /** True: side by side, the MLP reads what attention's norm makes; otherwise it has a norm of its own all the same. */
  readonly sharedNorm?: true;
  /** False: `norm` of each branch stands after the sum, h = norm(h + branch(h)), and there is no final norm. */
  readonly normFirst?: Setting<boolean>;
  /** True: no final norm, although norms come first. */
  readonly withoutFinalNorm?: Setting<boolean>;
}

/** logits = softCap(head(x) * multiply / divide), softCap c: c * tanh(. / c). */
export interface LogitsTable {
  readonly multiply?: Setting<number>;
  readonly divide?: Setting<number>;
  readonly softCap?: Setting<number>;
}
