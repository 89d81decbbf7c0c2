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
  readonly activation?: readonly Activation[];
  /** Multiplies q kᵀ; usually 1 / sqrt(head). */
  readonly scale?: (plan: ModelPlan, attention: AttentionPlan) => number;
  readonly embeddingScale?: (plan: ModelPlan) => number;
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
  /** Norms of q and k behind the rotation. */
  readonly normsLast?: true;
  /** The head is the embedding, or has a tensor of its own; usually either. */
  readonly head?: 'tied' | 'own';
  readonly router?: Router;
  /** Another reason not to write a model. */
  readonly but?: (plan: ModelPlan) => string | undefined;
}

const root = (_: ModelPlan, { headDim }: AttentionPlan): number => 1 / Math.sqrt(headDim);

/** Gemma's models of so many blocks divide by the root of hidden / heads. */
const gemmaScale =
  (blocks: number) =>
  (plan: ModelPlan, attention: AttentionPlan): number =>
    plan.blocks.length === blocks ? 1 / Math.sqrt(Math.trunc(plan.hidden / attention.heads)) : root(plan, attention);

const rootHidden = ({ hidden }: ModelPlan): number => Math.sqrt(hidden);
const always = () => true;
const BIASES: readonly Reads[] = ['output-bias', 'mlp-bias'];
const widely = (reads: readonly Reads[] = []): readonly Reads[] => ['rope-freqs', ...reads];
/** All heads have keys and values of their own. */
const manyHeads = ({ blocks }: ModelPlan): string | undefined => {
  const own = blocks[0]?.attention;
  if (own?.kind !== 'attention' || own.heads === own.kvHeads) return undefined;
  return `it has as many heads of keys as of queries, and this one ${own.kvHeads} and ${own.heads}`;
};
const GRANITE: readonly Reads[] = [
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
const QWEN: Computes = { pairs: 'halves' };
const QWEN35: Computes = {
  pairs: 'halves',
  reads: ['partial'],
  mixer: { kind: 'delta', told: 'list' },
  outputGate: true,
  sections: [11, 11, 10],
  but: ({ blocks }) => {
    const core = blocks.find(({ attention }) => attention.kind === 'recurrent')?.attention;
    if (core?.kind !== 'recurrent' || core.core.kind !== 'delta') return undefined;
    const { heads, keyHeads, valueDim } = core.core;
    return heads === keyHeads || valueDim % 32 === 0
      ? undefined
      : `it has heads in another order, and blocks of 32 are no parts of values of ${valueDim} dimensions`;
  },
};
const SHARED: Router = { normalize: 'key', sigmoid: 'key', scale: true, groups: true, leadingDense: true };
const LATENT: Computes = { pairs: 'neighbours', router: SHARED };

/** By model_type of config.json. */
export const GGUF_COMPUTES: Readonly<Record<string, Computes>> = {
  llama: { pairs: 'neighbours', reads: widely(BIASES) },
  mistral: { pairs: 'neighbours', reads: widely(BIASES) },
  mixtral: { pairs: 'neighbours', reads: widely(), router: { normalize: true } },
  ministral3: { pairs: 'neighbours', reads: widely(['temperature', 'yarn-betas', ...BIASES]) },
  qwen2: QWEN,
  qwen3: QWEN,
  qwen2_moe: { ...QWEN, router: { normalize: false } },
  qwen3_moe: { ...QWEN, router: { normalize: true } },
  gemma: { pairs: 'halves', activation: ['gelu_tanh'], embeddingScale: rootHidden, head: 'tied' },
  gemma2: {
    pairs: 'halves',
    activation: ['gelu_tanh'],
    reads: ['windows', 'soft-cap', 'logit-cap'],
    scale: gemmaScale(46),
    embeddingScale: rootHidden,
    localScaling: true,
    head: 'tied',
  },
  gemma3_text: {
    pairs: 'halves',
    activation: ['gelu_tanh'],
    reads: ['windows', 'local-theta', 'logit-cap'],
    scale: gemmaScale(62),
    embeddingScale: rootHidden,
  },
  gemma4_text: {
    pairs: 'halves',
    activation: ['gelu_tanh'],
    reads: ['windows', 'local-theta', 'logit-cap', 'local-heads', 'kv-heads', 'per-layer', 'shared-kv', 'rope-freqs'],
    scale: () => 1,
    embeddingScale: rootHidden,
    valueNorm: true,
    router: { normalize: true, apart: true },
  },
  phi3: { pairs: 'halves', reads: ['rope-factors', 'partial'] },
  olmo2: { pairs: 'halves', head: 'own' },
  olmo3: { pairs: 'halves', reads: ['windows', 'local-theta'], head: 'own' },
  exaone4: {
    pairs: 'halves',
    reads: widely(['windows']),
    localScaling: true,
    turns: (_, { window }, windowed) => window > 0 || !windowed,
    but: ({ blocks }) =>
      blocks.length === 64 || !blocks.some(({ attention }) => attention.kind === 'attention' && attention.window > 0)
        ? undefined
        : `it has windows in models of 64 blocks alone, and this one has ${blocks.length}`,
  },
  granite: { pairs: 'neighbours', reads: GRANITE },
  granitemoe: { pairs: 'neighbours', reads: GRANITE, router: { normalize: true } },
  glm4: { pairs: 'neighbours', reads: ['partial'] },
  cohere: {
    pairs: 'neighbours',
    reads: ['logit-scale'],
    parallel: always,
    head: 'tied',
    but: ({ blocks }) => {
      const normed = blocks[0]?.attention.kind === 'attention' && blocks[0].attention.qNorm !== undefined;
      if (normed === blocks.length >= 64) return undefined;
      return `it has norms of q and k in models of 64 blocks and more alone, and this one has ${blocks.length}`;
    },
  },
  cohere2: {
    pairs: 'neighbours',
    reads: ['windows', 'logit-scale'],
    parallel: always,
    head: 'tied',
    localScaling: true,
    turns: (_, { window }) => window > 0,
  },
  starcoder2: { pairs: 'halves', reads: BIASES, activation: ['gelu_tanh', 'gelu'] },
  gpt2: { reads: BIASES, activation: ['gelu_tanh', 'gelu'] },
  gpt_neox: {
    pairs: 'halves',
    reads: ['partial', 'parallel', ...BIASES],
    activation: ['gelu_tanh', 'gelu'],
    head: 'own',
  },
  stablelm: {
    pairs: 'halves',
    reads: ['partial'],
    head: 'own',
    // It knows by the norm that only models with branches one behind the other have.
    parallel: ({ blocks }) => blocks[0]?.parallel === true,
  },
  nemotron: { pairs: 'halves', reads: ['partial', ...BIASES], activation: ['relu2'], head: 'own' },
  smollm3: { pairs: 'neighbours', turns: (index) => (index + 1) % 4 !== 0 },
  arcee: { pairs: 'neighbours', reads: widely(), activation: ['relu2'] },
  ernie4_5: { pairs: 'neighbours', reads: ['output-bias'] },
  hunyuan_v1_dense: { pairs: 'halves', normsLast: true },
  seed_oss: { pairs: 'halves' },
  gpt_oss: {
    pairs: 'halves',
    reads: ['windows', 'sinks', 'output-bias'],
    localScaling: true,
    head: 'own',
    router: { normalize: true, clamped: true },
  },
  olmoe: { pairs: 'halves', head: 'own', router: { normalize: false }, but: manyHeads },
  dots1: { pairs: 'halves', head: 'own', router: SHARED, but: manyHeads },
  glm4_moe: { pairs: 'halves', reads: ['partial'], router: SHARED },
  minimax_m2: { pairs: 'halves', reads: ['partial'], head: 'own', router: { normalize: true, sigmoid: 'key' } },
  hunyuan_v1_moe: { pairs: 'halves', normsLast: true, router: { normalize: true } },
  ernie4_5_moe: {
    pairs: 'neighbours',
    router: { normalize: true, leadingDense: true, step: 'interleave_moe_layer_step' },
  },
  exaone_moe: {
    pairs: 'halves',
    reads: widely(['windows']),
    localScaling: true,
    head: 'own',
    turns: (_, { window }) => window > 0,
    router: SHARED,
  },
  hy_v3: { pairs: 'halves', router: { ...SHARED, anywhere: true } },
  mimo_v2_flash: {
    pairs: 'halves',
    reads: ['windows', 'local-theta', 'sinks', 'partial', 'value-scale', 'value-length', 'kv-heads'],
    head: 'own',
    router: { normalize: true, sigmoid: true, anywhere: true },
  },
  llama4_text: {
    pairs: 'neighbours',
    reads: widely(),
    turns: (index) => (index + 1) % 4 !== 0,
    chunk: 8192,
    temperature: { beta: 0.1, length: 8192, offset: 1 },
    normsLast: true,
    router: { normalize: false, sigmoid: true, weighInput: true, step: 'interleave_moe_layer_step' },
    but: ({ blocks }) => {
      const mixture = blocks.find(({ mlp }) => mlp.kind === 'experts')?.mlp;
      const count = mixture?.kind === 'experts' ? mixture.experts.length : 0;
      const own = blocks[0]?.attention;
      const normed = own?.kind === 'attention' && own.qNorm !== undefined;
      if (normed === (count !== 128)) return undefined;
      return `it norms q and k but in models of 128 experts, and this one has ${count}`;
    },
  },
  lfm2: { pairs: 'halves', mixer: { kind: 'conv', told: 'heads' } },
  lfm2_moe: {
    pairs: 'halves',
    mixer: { kind: 'conv', told: 'heads' },
    router: { normalize: true, sigmoid: 'key', leadingDense: true },
  },
  qwen3_next: {
    pairs: 'halves',
    reads: ['partial'],
    mixer: { kind: 'delta', told: 'list' },
    outputGate: true,
    router: { normalize: true },
  },
  qwen3_5_text: QWEN35,
  qwen3_5_moe_text: { ...QWEN35, router: { normalize: true } },
  jamba: { mixer: { kind: 'mamba', told: 'heads' }, router: { normalize: false, anywhere: true } },
  nemotron_h: {
    activation: ['relu2'],
    mixer: { kind: 'mamba2', told: 'heads' },
    single: true,
    bothNorms: true,
    reads: BIASES,
    router: { normalize: 'key', sigmoid: true, scale: true, groups: true, anywhere: true, plain: true, latent: true },
    but: ({ blocks }) => {
      const kinds = new Set(blocks.map(({ mlp }) => mlp.kind));
      return kinds.has('experts') && kinds.has('plain') ? 'it has experts or MLPs, and this one both' : undefined;
    },
  },
  qwen2_5_vl_text: { ...QWEN, sections: [] },
  qwen3_vl_text: { ...QWEN, sections: [] },
  qwen3_vl_moe_text: { ...QWEN, sections: [], router: { normalize: true } },
  deepseek_v2: LATENT,
  deepseek_v3: LATENT,
  kimi_k2: LATENT,
  glm4_moe_lite: LATENT,
};
