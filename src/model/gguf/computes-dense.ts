import type { AttentionPlan, ModelPlan } from '../plan.js';
import { BIASES, type Computes, GRANITE, QWEN, rootHidden, widely } from './computes.js';

const root = (_: ModelPlan, { headDim }: AttentionPlan): number => 1 / Math.sqrt(headDim);

/** Gemma's models of so many blocks divide by the root of hidden / heads. */
const gemmaScale =
  (blocks: number) =>
  (plan: ModelPlan, attention: AttentionPlan): number =>
    plan.blocks.length === blocks ? 1 / Math.sqrt(Math.trunc(plan.hidden / attention.heads)) : root(plan, attention);

const always = () => true;

/** What llama.cpp computes for models of attention and MLPs, by model_type of config.json. */
export const COMPUTES_DENSE: Readonly<Record<string, Computes>> = {
  llama: { pairs: 'neighbours', reads: widely(BIASES) },
  mistral: { pairs: 'neighbours', reads: widely(BIASES) },
  ministral3: { pairs: 'neighbours', reads: widely(['temperature', 'yarn-betas', ...BIASES]) },
  qwen2: QWEN,
  qwen3: QWEN,
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
  glm4: { pairs: 'neighbours', reads: ['partial'] },
  glm4v_text: { pairs: 'halves', reads: ['partial'], sections: [8, 12, 12] },
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
  apertus: { pairs: 'halves', reads: widely(['output-bias']), activation: ['xielu'], head: 'own' },
  arcee: { pairs: 'neighbours', reads: widely(), activation: ['relu2'] },
  ernie4_5: { pairs: 'neighbours', reads: ['output-bias'] },
  hunyuan_v1_dense: { pairs: 'halves', normsLast: true },
  seed_oss: { pairs: 'halves' },
  qwen2_5_vl_text: { ...QWEN, sections: [] },
  qwen3_vl_text: { ...QWEN, sections: [] },
};
