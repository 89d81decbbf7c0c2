import type { MixerCore } from '../mixers/plan.js';
import type { Activation, AttentionPlan, ModelPlan } from '../plan.js';

/** Settings that llama.cpp reads from a file; those of a model that it does not read must be neutral. */
export type Reads =
  /** attention.sliding_window and its pattern; without it llama.cpp sees everything in every block. */
  | 'windows'
  /** rope.freq_base_swa: another theta in blocks with a window. */
  | 'local-theta'
  | 'soft-cap'
  | 'logit-cap'
  /** logit_scale, which multiplies the logits, or divides them. */
  | 'logit-scale'
  | 'logit-divisor'
  | 'embedding-scale'
  | 'residual-scale'
  | 'attention-scale'
  /** attention.temperature_scale. */
  | 'temperature'
  | 'sinks'
  /** use_parallel_residual. */
  | 'parallel'
  /** rope_freqs.weight: a divisor of each frequency. */
  | 'rope-freqs'
  /** rope_factors_long.weight and rope_factors_short.weight. */
  | 'rope-factors'
  /** rope.dimension_count: a part of each head is rotated. */
  | 'partial'
  /** Biases of attention's output, and of the MLP. */
  | 'output-bias'
  | 'mlp-bias'
  /** rope.scaling.yarn_beta_fast and yarn_beta_slow. */
  | 'yarn-betas'
  /** attention.value_scale, value_length other than key_length, heads of keys and values block by block. */
  | 'value-scale'
  | 'value-length'
  | 'kv-heads'
  /** key_length_swa: heads of another size in blocks with a window. */
  | 'local-heads'
  /** Embeddings of each block, and what multiplies a block's output. */
  | 'per-layer'
  /** rope.scaling.finetuned: whether the blocks rotate positions. */
  | 'rotates'
  /** attention.indexer: the runs of keys that are seen. */
  | 'indexer'
  /** AltUp's streams, with LAuReL. */
  | 'streams'
  /** shared_kv_layers, and keys that are values. */
  | 'shared-kv';

/** How llama.cpp routes tokens to experts. `key`: as the file says. */
export interface Router {
  readonly normalize: boolean | 'key';
  readonly sigmoid?: boolean | 'key';
  /** expert_weights_scale; experts in groups by the sum of their two best. */
  readonly scale?: true;
  readonly groups?: true;
  /** GPT-OSS's gates. */
  readonly clamped?: true;
  /** leading_dense_block_count. */
  readonly leadingDense?: true;
  /** A key of how many blocks there are for each with experts, which is the last of them. */
  readonly step?: string;
  /** Experts in any blocks: llama.cpp looks which tensors there are. */
  readonly anywhere?: true;
  /** Weights multiply what experts read. */
  readonly weighInput?: true;
  /** Experts on vectors of another width, moe_latent_size. */
  readonly latent?: true;
  /** Experts beside the MLP, with norms of their own. */
  readonly apart?: true;
  /** Experts without a gate. */
  readonly plain?: true;
}

/** What llama.cpp computes for an architecture, where config.json could say otherwise. Without a field: what it does for Llama. */
export interface Computes {
  /** Which elements of a head it turns together. None: it turns nothing. */
  readonly pairs?: 'neighbours' | 'halves';
  readonly reads?: readonly Reads[];
  /** xielu: with numbers of every block, which the file lists (GgufArchitecture.scalars). */
  readonly activation?: readonly (Activation | 'xielu')[];
  /** Multiplies q kᵀ; usually 1 / sqrt(head). */
  readonly scale?: (plan: ModelPlan, attention: AttentionPlan) => number;
  readonly embeddingScale?: (plan: ModelPlan) => number;
  /** A cap of the logits that no key changes. */
  readonly logitCap?: number;
  /** Whether a block is rotated, in a model that has windows or not; usually each. */
  readonly turns?: (index: number, attention: AttentionPlan, windowed: boolean) => boolean;
  /** Attention and MLP side by side; usually one behind the other. */
  readonly parallel?: (plan: ModelPlan) => boolean;
  /** Whether blocks with a window scale positions as the others do. */
  readonly localScaling?: true;
  /** Chunks of attention in the blocks that turn, and how queries grow in the others. */
  readonly chunk?: number;
  readonly temperature?: { readonly beta: number; readonly length: number; readonly offset: number };
  /** Recurrent layers in the place of attention, and how the file tells them: by heads of keys, of which they have 0, or a list. */
  readonly mixer?: { readonly kind: MixerCore['kind']; readonly told: 'heads' | 'list' };
  /** It wants rope.dimension_sections: these, where config.json has none. */
  readonly sections?: readonly number[];
  /** It reads the epsilon under the names of both kinds of norms. */
  readonly bothNorms?: true;
  /** Blocks of one branch each. */
  readonly single?: true;
  /** Values go through a norm without a weight. */
  readonly valueNorm?: true;
  /** Attention whose output is multiplied by gates that q makes. */
  readonly outputGate?: true;
  /** GPT-OSS's gates in MLPs. */
  readonly clamped?: true;
  /** Norms of q and k behind the rotation. */
  readonly normsLast?: true;
  /** The head is the embedding, or has a tensor of its own; usually either. */
  readonly head?: 'tied' | 'own';
  readonly router?: Router;
  /** Another reason not to write a model. */
  readonly but?: (plan: ModelPlan) => string | undefined;
}

/** RoPE's divisors by frequency, and more. */
export const widely = (reads: readonly Reads[] = []): readonly Reads[] => ['rope-freqs', ...reads];
/** The biases that Llama's own settings can ask for. */
export const BIASES: readonly Reads[] = ['output-bias', 'mlp-bias'];

/** What Gemma multiplies embeddings with. */
export const rootHidden = ({ hidden }: ModelPlan): number => Math.sqrt(hidden);

/** Granite's multipliers. */
export const GRANITE: readonly Reads[] = [
  ...widely([
    'output-bias',
    'mlp-bias',
    'logit-divisor',
    'residual-scale',
    'embedding-scale',
    'attention-scale',
    'rope-factors',
  ]),
];
/** Qwen's models without linear attention. */
export const QWEN: Computes = { pairs: 'halves' };
