import type { Architecture } from '../architecture.js';
import type { Setting } from '../config.js';

const biased: Setting<boolean> = { keys: ['enable_bias'], otherwise: true };

/** OPT (arXiv:2205.01068): learned positions from row 2 on; the 350M has its norms after the sums, and narrower embeddings. */
export const opt: Architecture = {
  modelType: 'opt',
  className: 'OPTForCausalLM',
  names: {
    variants: [{ prefix: 'model.', instead: '' }],
    embedding: 'model.decoder.embed_tokens',
    positions: 'model.decoder.embed_positions',
    projectIn: 'model.decoder.project_in',
    projectOut: 'model.decoder.project_out',
    finalNorm: 'model.decoder.final_layer_norm',
    head: 'lm_head',
    block: 'model.decoder.layers.{layer}.',
  },
  tied: { keys: ['tie_word_embeddings'], otherwise: true },
  norm: { kind: 'layer', epsilon: 1e-5, affine: { keys: ['layer_norm_elementwise_affine'], otherwise: true } },
  embedding: { width: ['word_embed_proj_dim'], firstPosition: 2 },
  residual: {
    normFirst: { keys: ['do_layer_norm_before'], otherwise: true },
    withoutFinalNorm: { keys: ['_remove_final_layer_norm'], otherwise: false },
  },
  attention: {
    names: {
      norm: 'self_attn_layer_norm',
      q: 'self_attn.q_proj',
      k: 'self_attn.k_proj',
      v: 'self_attn.v_proj',
      o: 'self_attn.out_proj',
    },
    bias: { q: biased, k: biased, v: biased, o: biased },
    headDim: 'hidden/heads',
    window: { enabled: false, otherwise: null, fullBlocks: 0, layerTypes: false },
  },
  mlp: {
    kind: 'plain',
    names: { norm: 'final_layer_norm', up: 'fc1', down: 'fc2' },
    bias: biased,
    activation: { keys: ['activation_function'], otherwise: 'relu' },
    intermediate: ['ffn_dim'],
  },
};
