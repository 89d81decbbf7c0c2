import type { GgufFacts } from '../source/facts.js';
import type { GgufArchitectures, Json, Shared } from './architecture.js';
import { perLayerRows, twoRopes, windows } from './config.js';
import * as parts from './parts.js';

/** The first blocks, which cut most of their gates; and those that have keys and values of their own. No key says otherwise. */
const [SPARSE, OWN] = [10, 20];

function gemma3n(facts: GgufFacts, own: Shared): Json {
  const { hidden, heads, headDim, layers } = own;
  const [rank = 0] = facts.shape('blk.0.laurel_l.weight');
  const [inputs = 0] = facts.shape('blk.0.altup_router.weight');
  return {
    hidden_size: hidden,
    intermediate_size: facts.number('feed_forward_length'),
    num_hidden_layers: layers,
    num_attention_heads: heads,
    num_key_value_heads: facts.number('attention.head_count_kv'),
    head_dim: headDim,
    max_position_embeddings: facts.number('context_length'),
    rms_norm_eps: facts.number('attention.layer_norm_rms_epsilon'),
    hidden_activation: 'gelu_pytorch_tanh',
    attention_bias: false,
    ...windows(facts, own, 5),
    ...twoRopes(facts, own, 1_000_000, 10_000),
    num_kv_shared_layers: Math.max(0, layers - OWN),
    final_logit_softcapping: 30,
    hidden_size_per_layer_input: facts.optional('embedding_length_per_layer_input') ?? 256,
    vocab_size_per_layer_input: perLayerRows(facts),
    activation_sparsity_pattern: Array.from({ length: layers }, (_, i) => (i < SPARSE ? 0.95 : 0)),
    altup_num_inputs: inputs,
    altup_active_idx: 0,
    altup_correct_scale: true,
    laurel_rank: rank,
  };
}

/** Gemma 3n: per-layer embeddings, and four streams of alternating updates (AltUp) around the blocks. */
export const GEMMA_3N: GgufArchitectures = {
  gemma3n_text: {
    name: 'gemma3n',
    className: 'Gemma3nForCausalLM',
    outer: {
      ...parts.PER_LAYER_OUTER,
      'altup_proj.weight': 'model.altup_projections.{expert}.weight',
      'altup_unembd_proj.weight': 'model.altup_unembed_projections.{expert}.weight',
    },
    blocks: 'model.layers',
    block: {
      ...parts.GEMMA_BLOCK,
      ...parts.PER_LAYER_BLOCK,
      altup_correct_coef: 'altup.correction_coefs',
      'altup_correct_scale.weight': 'altup.correct_output_scale',
      altup_predict_coef: 'altup.prediction_coefs',
      altup_router: 'altup.modality_router',
      altup_router_norm: 'altup.router_norm',
      laurel_l: 'laurel.linear_left',
      laurel_r: 'laurel.linear_right',
      laurel_post_norm: 'laurel.post_laurel_norm',
    },
    sharing: ['attn_k', 'attn_v', 'attn_k_norm'],
    config: gemma3n,
  },
};
