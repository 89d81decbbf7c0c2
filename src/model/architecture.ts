import type { Setting } from './config.js';
import type { RecurrentTable } from './mixers/table.js';
import type { CompressedTable } from './plan-compressed.js';
import type { HyperTable } from './plan-hyper.js';
import type { AttentionTable } from './tables/attention.js';
import type { ExpertsTable } from './tables/experts.js';
import type { MlaTable } from './tables/mla.js';
import type { MlpTable } from './tables/mlp.js';
import type { NameVariant, PublishedKeys, SingleBranch, SizeKeys } from './tables/names.js';
import type {
  EmbeddingTable,
  LogitsTable,
  NormTable,
  PerLayerTable,
  ResidualTable,
  TextTable,
} from './tables/outer.js';
import type { PredictionTable } from './tables/prediction.js';

/**
 * An architecture is this table and nothing else; plan.ts reads it together with a config.json. Names are module paths
 * without `.weight`; those of a block are relative to `names.block`, in which {layer} is replaced, as {expert} is in the
 * names of experts. Fields that are left out mean what Llama does.
 */
export interface Architecture {
  /** `model_type` of config.json, and the class in `architectures` that stands for it in files without one. */
  readonly modelType: string;
  readonly className: string;
  /** Keys of config.json that hold sizes, where the class has names of its own. */
  readonly sizes?: Partial<SizeKeys>;
  /**
   * How many blocks one layer of config.json is (1): names have the block's index for {part}, and the layer's for {layer}. The first
   * has the experts, whose sum is added behind the last; its MLP is their shared expert.
   */
  readonly parts?: number;
  /** Where config.json has the language model's settings, in models of more than text; `defaults` are its class's. */
  readonly text?: TextTable;
  readonly defaults?: Readonly<Record<string, unknown>>;
  readonly published?: PublishedKeys;
  /** Present where a block has one branch, with the names of attention, MLP and experts alike. */
  readonly single?: SingleBranch;
  /** The differences of checkpoints with a tensor whose name ends so: those that the authors publish under other names than the class saves. */
  readonly spelled?: readonly { readonly has: string; readonly as: Partial<Architecture> }[];
  /** Names in blocks, and what checkpoints without those have instead. */
  readonly respelled?: readonly (readonly [name: string, instead: string])[];
  /** Keys that change the computation in ways lpq does not know, with the only value it takes; absent and null pass. */
  readonly only?: Readonly<Record<string, unknown>>;
  readonly names: {
    /** Other spellings in published checkpoints. */
    readonly variants?: readonly NameVariant[];
    readonly embedding: string;
    /** Learned positions, added to the embedding. */
    readonly positions?: string;
    /** Linears between an embedding of another width and the blocks, and back before the head. */
    readonly projectIn?: string;
    readonly projectOut?: string;
    readonly finalNorm: string;
    readonly head: string;
    readonly block: string;
    /** Of PerLayerTable: the table of all blocks, the linear beside it, and the norm of what that makes. */
    readonly perLayer?: string;
    readonly perLayerLinear?: string;
    readonly perLayerNorm?: string;
    /** Of AltUpTable: linears that make stream {stream} of the embedding, and back behind the last block. */
    readonly streamIn?: string;
    readonly streamOut?: string;
  };
  /** True: lm_head shares the embedding's weight. */
  readonly tied: Setting<boolean>;
  /** True: lm_head has a bias. */
  readonly headBias?: Setting<boolean>;
  readonly norm: NormTable;
  readonly embedding?: EmbeddingTable;
  readonly residual?: ResidualTable;
  readonly logits?: LogitsTable;
  /** True: linears of blocks are stored as [K, N] (Conv1D). */
  readonly transposed?: boolean;
  readonly attention: AttentionTable;
  /** Present where attention is latent (MLA), in the place of `attention`. */
  readonly mla?: MlaTable;
  /** Present where attention reads entries of older tokens, in the place of `attention`. */
  readonly compressed?: CompressedTable;
  readonly hyper?: HyperTable;
  /** Present where (some) blocks have a recurrent layer in the place of attention. */
  readonly recurrent?: RecurrentTable;
  readonly mlp: MlpTable;
  /** Present where (some) blocks have a mixture of experts in the place of the MLP. */
  readonly experts?: ExpertsTable;
  readonly perLayer?: PerLayerTable;
  readonly altUp?: AltUpTable;
  /** Present where published checkpoints have layers of multi-token prediction under these names. */
  readonly prediction?: PredictionTable;
  /** A tensor [1] that multiplies what a block makes. */
  readonly blockScale?: string;
}

/**
 * Alternating updates (AltUp, arXiv:2301.13310) as Gemma 3n has them: `inputs` streams, of which a block computes the first alone. With
 * m = tanh(router(norm(x) / hidden)) of the first stream x: the block predicts every stream, s_b + sum over a of predict(m)[b * inputs + a]
 * * s_a, computes on the first, and corrects each by (correct(m) + 1) times what it computed less what was predicted, m then of what it
 * computed. Per-layer embeddings add to all streams but the first, their input being that times `outputScale` [hidden]. LAuReL
 * (arXiv:2411.07501): x + norm(right(left x)) of attention's input joins what attention leaves, both over sqrt(2).
 */
export interface AltUpTable {
  readonly inputs: Setting<number>;
  readonly routerNorm: string;
  readonly router: string;
  readonly predict: string;
  readonly correct: string;
  readonly outputScale: string;
  readonly scaled: Setting<boolean>;
  readonly laurel: {
    readonly left: string;
    readonly right: string;
    readonly norm: string;
    readonly rank: Setting<number>;
  };
}
