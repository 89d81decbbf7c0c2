import type { ModelPlan } from '../plan.js';
import { BIASES, type Computes, GRANITE, QWEN, type Router, rootHidden, widely } from './computes.js';
import { GEMMA_3N } from './computes-gemma3n.js';
import { MINIMAX_M3 } from './computes-minimax-m3.js';
import { mixers } from './facts.js';

/** All heads have keys and values of their own. */
const manyHeads = ({ blocks }: ModelPlan): string | undefined => {
  const own = blocks[0]?.attention;
  if (own?.kind !== 'attention' || own.heads === own.kvHeads) return undefined;
  return `it has as many heads of keys as of queries, and this one ${own.kvHeads} and ${own.heads}`;
};
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

/** What llama.cpp computes for models with experts or recurrent layers, by model_type of config.json. */
export const COMPUTES_OTHERS: Readonly<Record<string, Computes>> = {
  mixtral: { pairs: 'neighbours', reads: widely(), router: { normalize: true } },
  qwen2_moe: { ...QWEN, router: { normalize: false } },
  qwen3_moe: { ...QWEN, router: { normalize: true } },
  gemma4_text: {
    pairs: 'halves',
    activation: ['gelu_tanh'],
    reads: ['windows', 'local-theta', 'logit-cap', 'local-heads', 'kv-heads', 'per-layer', 'shared-kv', 'rope-freqs'],
    scale: () => 1,
    embeddingScale: rootHidden,
    valueNorm: true,
    router: { normalize: true, apart: true },
  },
  gemma3n_text: GEMMA_3N,
  granitemoe: { pairs: 'neighbours', reads: GRANITE, router: { normalize: true } },
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
  minimax_m3_vl_text: MINIMAX_M3,
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
  granitemoehybrid: {
    pairs: 'neighbours',
    reads: [...GRANITE, 'rotates'],
    mixer: { kind: 'mamba2', told: 'heads' },
    router: { normalize: true },
    but: (plan) => {
      const core = mixers(plan)[0]?.[1].core;
      if (core?.kind !== 'mamba2') return 'it wants recurrent layers, and this one has none';
      if (core.heads * core.headDim !== 2 * plan.hidden)
        return `it has states of twice the hidden size, and this one of ${core.heads * core.headDim}`;
      if (core.groups > 1)
        return `it norms states group by group, and this one all of its ${core.groups} groups at once`;
      return core.conv.bias === undefined ? 'it adds biases of convolutions, and this one has none' : undefined;
    },
  },
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
  qwen3_vl_moe_text: { ...QWEN, sections: [], router: { normalize: true } },
  deepseek_v2: LATENT,
  deepseek_v3: LATENT,
  kimi_k2: LATENT,
  glm4_moe_lite: LATENT,
};
