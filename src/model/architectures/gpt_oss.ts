import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

const bias = { keys: ['attention_bias'], otherwise: true } as const;

/**
 * GPT-OSS 20b and 120b (arXiv:2508.10925): sinks in the softmax, windows in every second block, biases throughout, clamped
 * gates, and the linears of all experts of a block in one tensor.
 */
export const gptOss: Architecture = {
  ...llama,
  modelType: 'gpt_oss',
  className: 'GptOssForCausalLM',
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  attention: {
    ...llama.attention,
    names: { ...llama.attention.names, sinks: 'self_attn.sinks' },
    bias: { q: bias, k: bias, v: bias, o: bias },
    headDim: 64,
    rope: { style: 'half', theta: 150_000 },
    window: {
      enabled: true,
      otherwise: 128,
      fullBlocks: 0,
      layerTypes: true,
      alternateUpTo: Number.POSITIVE_INFINITY,
    },
  },
  experts: {
    names: {
      router: 'mlp.router',
      gate: 'mlp.experts.{expert}.gate_proj',
      up: 'mlp.experts.{expert}.up_proj',
      down: 'mlp.experts.{expert}.down_proj',
    },
    count: ['num_local_experts', 'num_experts'],
    perToken: ['num_experts_per_tok', 'experts_per_token'],
    intermediate: ['intermediate_size'],
    bias: { router: true, experts: true },
    // A softmax over the chosen logits, which is the same.
    normalize: true,
    gate: {
      alpha: { keys: ['swiglu_alpha'], otherwise: 1.702 },
      limit: { keys: ['swiglu_limit'], otherwise: 7 },
    },
    every: 1,
    denseBlocks: 'mlp_only_layers',
    fused: [
      {
        tensor: 'mlp.experts.gate_up_proj',
        bias: 'mlp.experts.gate_up_proj_bias',
        parts: ['gate', 'up'],
        interleaved: true,
        stored: 'in-out',
      },
      { tensor: 'mlp.experts.down_proj', bias: 'mlp.experts.down_proj_bias', parts: ['down'], stored: 'in-out' },
    ],
  },
};
