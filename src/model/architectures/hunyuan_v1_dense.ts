import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/** Hunyuan 0.5B to 7B: Llama with norms on the heads of q and k after the rotation, and a theta that `alpha` raises. */
export const hunyuanV1Dense: Architecture = {
  ...llama,
  modelType: 'hunyuan_v1_dense',
  className: 'HunYuanDenseV1ForCausalLM',
  only: { use_cla: false },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  attention: {
    ...llama.attention,
    names: { ...llama.attention.names, qNorm: 'self_attn.query_layernorm', kNorm: 'self_attn.key_layernorm' },
    headNorm: { afterRotation: true, enabled: { keys: ['use_qk_norm'], otherwise: true } },
    rope: { style: 'half', theta: 10_000, alpha: true },
  },
  mlp: { ...llama.mlp, bias: false },
};
