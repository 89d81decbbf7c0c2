import type { Architecture } from '../architecture.js';
import { gemma3Text } from './gemma3.js';
import { gemma4Text } from './gemma4.js';

/**
 * Gemma 3n's text models: per-layer embeddings and keys that blocks share as in Gemma 4, four streams of alternating updates (AltUp),
 * LAuReL beside attention, and, in the first blocks, gates of which most are 0.
 */
export const gemma3nText: Architecture = {
  ...gemma3Text,
  norm: gemma4Text.norm,
  ...(gemma4Text.perLayer && { perLayer: gemma4Text.perLayer }),
  modelType: 'gemma3n_text',
  className: 'Gemma3nForCausalLM',
  only: { altup_active_idx: 0 },
  defaults: {
    vocab_size: 262_400,
    hidden_size: 2048,
    intermediate_size: 16_384,
    num_hidden_layers: 35,
    num_attention_heads: 8,
    num_key_value_heads: 2,
  },
  names: {
    ...gemma4Text.names,
    streamIn: 'model.altup_projections.{stream}',
    streamOut: 'model.altup_unembed_projections.{stream}',
  },
  logits: { softCap: { keys: ['final_logit_softcapping'], otherwise: 30 } },
  attention: {
    ...gemma3Text.attention,
    scale: { factor: 1 },
    valueNorm: true,
    sharedKv: { keys: ['num_kv_shared_layers'], otherwise: 15 },
    window: { enabled: true, otherwise: 512, fullBlocks: 0, fullEvery: 5, layerTypes: true },
  },
  mlp: { ...gemma3Text.mlp, sparsity: { list: 'activation_sparsity_pattern', otherwise: 0.95, blocks: 10 } },
  altUp: {
    inputs: { keys: ['altup_num_inputs'], otherwise: 4 },
    routerNorm: 'altup.router_norm',
    router: 'altup.modality_router',
    predict: 'altup.prediction_coefs',
    correct: 'altup.correction_coefs',
    outputScale: 'altup.correct_output_scale',
    scaled: { keys: ['altup_correct_scale'], otherwise: true },
    laurel: {
      left: 'laurel.linear_left',
      right: 'laurel.linear_right',
      norm: 'laurel.post_laurel_norm',
      rank: { keys: ['laurel_rank'], otherwise: 64 },
    },
  },
};
