import type { KvLatents } from '../../formats/kv/latent.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { HeadNorms, Rotation } from '../../native/cache-ops.js';
import type { AttentionParams } from '../../native/ops.js';
import type { Past } from '../../native/recurrent-ops.js';
import type { Columns } from './columns.js';
import type { Selection } from './indexer.js';
import type { PackedWeight } from './kernels/kernel.js';
import type { ActivationForm, KvForm, MixedWeight } from './source.js';
import type { StackedExperts } from './stacked-experts.js';

/** A ragged batch of token sequences, the unit in which activations flow. */
export interface Batch {
  /** Tokens of all sequences. */
  readonly tokens: number;
  /** Tokens of the longest sequence: rotary tables must reach this far. */
  readonly longest: number;
  /** Tokens of each sequence. */
  readonly lengths: readonly number[];
  /** How many tokens come before those of each sequence, where the batch holds only the newest. */
  readonly earlier?: readonly number[];
  /** I32 [S+1] and I32 [T]. makeBatch() in batch.ts makes all of these. */
  readonly starts: Tensor;
  readonly positions: Tensor;
}

/** A linear layer: `name` is its module path (model.layers.0.self_attn.q_proj), its weight is NAME.weight. */
export interface LinearRef {
  readonly name: string;
  readonly n: number;
  readonly k: number;
  /** Index of the expert for linears inside a mixture of experts. */
  readonly expert?: number;
  /** The source checkpoint stores the weight as [K, N]. */
  readonly transposed?: true;
}

/** Linears that read the same activation, hence share a Hessian. */
export interface Feed {
  readonly id: string;
  readonly linears: readonly LinearRef[];
  /** Their products are cut into further parts, and so not read as columns of one. */
  readonly apart?: true;
}

/** Linears that are multiplied as one: its rows are theirs, one below another. `name` stands for NAME.weight and NAME.bias alone. */
export interface JoinedLinear {
  readonly name: string;
  readonly n: number;
  readonly k: number;
  readonly bias: boolean;
}

/**
 * A block's queries, keys and values of a batch's tokens, f32 [T, ...] or columns of such, and where the attention output goes.
 * `norms`, then `rotation`: what q and k still have to go through.
 */
export interface AttentionTensors {
  readonly q: Columns;
  readonly k: Columns;
  readonly v: Columns;
  readonly y: Tensor;
  readonly norms?: HeadNorms;
  readonly rotation?: Rotation;
  /** Index of the block whose keys and values are read in the place of k and v, which say nothing then. */
  readonly reads?: number;
  /** The keys that each token sees; without it all before it. */
  readonly selected?: Selection;
}

/**
 * Attention of a block whose earlier tokens are kept: enqueues keeping k and v, which may be changed, and y = attention of q over
 * all tokens of each sequence so far.
 */
export type CachedAttention = (t: AttentionTensors, p: AttentionParams, sinks: Tensor | undefined) => void;

/** Latent attention of a block whose earlier tokens are kept as latents (docs/kv-cache.md). */
export interface KeptLatents {
  /** Whether the batch is whole prompts: its tokens read each other as they are, and nothing else. */
  readonly prompts: boolean;
  /** Enqueues keeping c f16 [T, latent] and rotary f16 [T, rotary], dims as a page holds them. */
  keep(c: Tensor, rotary: Tensor): void;
  /** Enqueues y f32 [T, heads*latent] = attention of q f16 [T, heads*(latent + rotary)] over all tokens so far, those of the batch too. */
  attend(q: Tensor, y: Tensor, p: { heads: number; scale: number }): void;
}

/** State between stages: the residual stream h f32 [T,C], and what a stage hands to the next one only. */
export interface BlockState {
  readonly batch: Batch;
  h: Tensor;
  /** e.g. the attention output, or the MLP's hidden activation; keyed by the stage that made it. */
  aux: Record<string, Tensor>;
  /**
   * What goes along with h from block to block: per-layer embeddings, keys and values that later blocks read, further streams. Never
   * changed in place; a stage puts other tensors there and disposes of those that it replaces.
   */
  readonly carried?: Readonly<Record<string, Tensor>>;
  /** Where the batch holds only the newest tokens of its sequences. */
  readonly attend?: CachedAttention;
  /** There too, of a cache of latents: that of this block, for dims as a page holds them. */
  readonly latents?: (stored: { readonly latent: number; readonly rotary: number }) => KeptLatents | undefined;
  /** There too: what a recurrence of this block goes on from, its state f32 [slots, ...shape] kept under `name`. */
  readonly recall?: (name: string, shape: readonly number[]) => Past;
  /** There too: rows f32 [slots, R, width] of this block kept under `name`, one for `rate` (1) tokens, with room for the batch's. */
  readonly rows?: (name: string, width: number, rate?: number) => Past;
  /**
   * What a branch has made and h lacks: h is h + y * scale, y [T,C] in any activation dtype. Only where `attend` is; who reads h asks
   * for it (branch.ts).
   */
  pending?: { readonly y: Tensor; readonly scale: number } | undefined;
}

/**
 * The current weights of one block, by full weight name; the quantizer replaces entries as it goes. `packed`: linears that
 * are multiplied in packed form, by NAME.weight, which then is no entry; `mixed` likewise for W4Ax. `activations`: what the
 * linears read instead of their input, by NAME, while their weights are entries in floats. `joined`: what is multiplied instead of a
 * linear of this NAME and its siblings, whose weights then are no entries (siblings.ts). `banded`: weights in the order in which
 * products of few rows read them, by NAME.weight (banded.ts). `stacked`: what is multiplied instead of the experts' linears of a stage, by
 * the stage's id (stacked-experts.ts). `expanded`: weights of packed linears in floats, by NAME.weight, where they are multiplied head by
 * head (absorbed.ts).
 */
export type BlockWeights = Map<string, Tensor> & {
  packed?: Map<string, PackedWeight>;
  mixed?: Map<string, MixedWeight>;
  activations?: Map<string, ActivationForm>;
  joined?: Map<string, JoinedLinear>;
  banded?: Map<string, Tensor>;
  stacked?: Map<string, StackedExperts>;
  expanded?: Map<string, Tensor>;
  kv?: KvForm;
  latents?: KvLatents;
};

/**
 * A step of a block whose linears are quantized together: true-sequential GPTQ captures a stage's inputs with all
 * earlier stages already quantized. Llama has four: qkv, o, gate/up, down.
 */
export interface Stage {
  readonly id: string;
  readonly feeds: readonly Feed[];
  /** Bytes a token that advance() takes meanwhile, where that is far more than what its feeds' linears read and make. */
  readonly temporaryBytes?: number;
  /**
   * The activations that this stage's feeds read, f32 [rows, K] by feed id (an expert's: only its routed rows; rows may
   * be 0, but are at least `coverage` of the tokens). New tensors; the caller disposes of them after use. Async only where
   * routing must be read back.
   */
  capture(rt: NativeRuntime, weights: BlockWeights, state: BlockState, coverage?: number): Promise<Map<string, Tensor>>;
  /** Runs the stage: consumes `state` (its tensors may be reused or disposed of) and returns the next state. */
  advance(rt: NativeRuntime, weights: BlockWeights, state: BlockState): Promise<BlockState>;
}

/** One transformer block. */
export interface Block {
  readonly index: number;
  /** Full names of every weight the block needs, and the shapes the architecture demands. */
  readonly tensors: ReadonlyMap<string, readonly number[]>;
  readonly stages: readonly Stage[];
  /** Of multi-token prediction: it goes on from the final states, and the head does not read what it makes. */
  readonly predicts?: true;
}

/** The graph of a model; it holds no weights but the few that head() and embed() need. */
export interface ModelGraph {
  readonly architecture: string;
  readonly hidden: number;
  /** Numbers a token that go along between blocks, h among them; keys and values that later blocks read are not counted. */
  readonly stream: number;
  readonly vocab: number;
  readonly blocks: readonly Block[];
  /** Weights outside blocks (embedding, final norm, lm_head) by full name. */
  readonly outer: ReadonlyMap<string, readonly number[]>;
  /** lm_head; tied: its weight is the embedding's. */
  readonly head: LinearRef & { readonly tied: boolean };
  /** Weights that the source checkpoint stores as [K, N] (Conv1D); `tensors` of blocks have them as [N, K], as loaded. */
  readonly transposed: ReadonlySet<string>;
  /** The longest sequence that the model has positions for; undefined without a bound (positions are computed). */
  readonly longest: number | undefined;
  /** h f32 [T,C] from I32 [T] ids and their positions in their sequences. */
  embed(rt: NativeRuntime, weights: BlockWeights, ids: Tensor, positions: Tensor): Tensor;
  /** What goes along with h from the embedding on (BlockState.carried); undefined where nothing does. */
  carried(rt: NativeRuntime, weights: BlockWeights, ids: Tensor, h: Tensor): Record<string, Tensor> | undefined;
  /** What lm_head reads, f32 [T, head.k]: final states h after the final norm, projected where the model does so. */
  headInput(rt: NativeRuntime, weights: BlockWeights, h: Tensor): Tensor;
  /** logits f32 [T,V] of final states h (final norm included); h is not changed, but by what is pending, which is let go of. */
  logits(rt: NativeRuntime, weights: BlockWeights, h: Tensor, pending?: BlockState['pending']): Tensor;
}
