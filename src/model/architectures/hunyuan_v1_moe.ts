import type { Architecture } from '../architecture.js';
import { hunyuanV1Dense } from './hunyuan_v1_dense.js';
import { qwenExperts } from './qwen3-moe.js';

/** Hunyuan-A13B: the dense model with experts in every block, and an MLP of their size for every token. */
export const hunyuanV1Moe: Architecture = {
  ...hunyuanV1Dense,
  modelType: 'hunyuan_v1_moe',
  className: 'HunYuanMoEV1ForCausalLM',
  experts: {
    ...qwenExperts,
    names: { ...qwenExperts.names, router: 'mlp.gate.wg' },
    perToken: ['moe_topk', 'num_experts_per_tok'],
    intermediate: ['intermediate_size'],
    normalize: true,
    shared: {
      names: { gate: 'mlp.shared_mlp.gate_proj', up: 'mlp.shared_mlp.up_proj', down: 'mlp.shared_mlp.down_proj' },
      intermediate: { keys: ['intermediate_size'] },
    },
    every: 1,
  },
};
