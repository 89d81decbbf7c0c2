import type { Architecture } from '../architecture.js';
import { qwen2 } from './qwen2.js';
import { qwenExperts } from './qwen3-moe.js';

const qkv = { keys: ['qkv_bias'], otherwise: true } as const;

/** Qwen1.5-MoE and Qwen2-57B-A14B: Qwen2 with a mixture of experts, and one more for every token behind a gate. */
export const qwen2Moe: Architecture = {
  ...qwen2,
  modelType: 'qwen2_moe',
  className: 'Qwen2MoeForCausalLM',
  attention: {
    ...qwen2.attention,
    bias: { q: qkv, k: qkv, v: qkv, o: false },
    window: { ...qwen2.attention.window, alternateUpTo: { keys: ['max_window_layers'], otherwise: 28 } },
  },
  experts: {
    ...qwenExperts,
    shared: {
      names: {
        gate: 'mlp.shared_expert.gate_proj',
        up: 'mlp.shared_expert.up_proj',
        down: 'mlp.shared_expert.down_proj',
      },
      intermediate: { keys: ['shared_expert_intermediate_size'] },
      outputGate: 'mlp.shared_expert_gate',
    },
  },
};
