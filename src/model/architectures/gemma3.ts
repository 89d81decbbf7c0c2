import type { Architecture } from '../architecture.js';
import { gemma2 } from './gemma2.js';

/**
 * Gemma 3's text models (arXiv:2503.19786): Gemma 2 with norms on the heads of q and k in place of the caps, five blocks
 * with a window for each without, and a theta of their own, unscaled, for those with one.
 */
export const gemma3Text: Architecture = {
  ...gemma2,
  modelType: 'gemma3_text',
  className: 'Gemma3ForCausalLM',
  logits: { softCap: { keys: ['final_logit_softcapping'], otherwise: 0 } },
  attention: {
    ...gemma2.attention,
    names: { ...gemma2.attention.names, qNorm: 'self_attn.q_norm', kNorm: 'self_attn.k_norm' },
    // The config has attn_logit_softcapping still; the class does not read it.
    softCap: 0,
    rope: { style: 'half', theta: 1_000_000, local: { keys: ['rope_local_base_freq'], otherwise: 10_000 } },
    window: {
      enabled: true,
      otherwise: 4096,
      fullBlocks: 0,
      fullEvery: { keys: ['sliding_window_pattern', '_sliding_window_pattern'], otherwise: 6 },
      layerTypes: true,
    },
  },
};
