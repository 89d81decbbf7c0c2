import type { Architecture } from '../architecture.js';
import { CONVOLUTIONS_STAY, GATES_STAY, STATES_STAY } from '../mixers/table.js';
import { olmo2 } from './olmo2.js';

/** OLMo Hybrid: gated delta nets with norms before their branches; OLMo 2's attention, with norms behind, rotated unless the theta is null. */
export const olmoHybrid: Architecture = {
  ...olmo2,
  modelType: 'olmo_hybrid',
  className: 'OlmoHybridForCausalLM',
  only: { hidden_act: 'silu' },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-6 } },
  // transformers writes one of its own names for two of the checkpoint's.
  respelled: [['post_attention_layernorm', 'feedforward_layer_norm']],
  recurrent: {
    blocks: { type: 'linear_attention', attention: ['full_attention'], attentionEvery: 4 },
    names: { norm: 'attention_layer_norm' },
    mlp: { norm: 'feedforward_layer_norm' },
    mixer: {
      kind: 'delta',
      names: {
        order: 'separate',
        q: 'linear_attn.q_proj',
        k: 'linear_attn.k_proj',
        v: 'linear_attn.v_proj',
        gate: 'linear_attn.g_proj',
        b: 'linear_attn.b_proj',
        a: 'linear_attn.a_proj',
        convs: ['linear_attn.q_conv1d', 'linear_attn.k_conv1d', 'linear_attn.v_conv1d'],
        rate: 'linear_attn.A_log',
        bias: 'linear_attn.dt_bias',
        norm: 'linear_attn.o_norm',
        output: 'linear_attn.o_proj',
      },
      keyHeads: ['linear_num_key_heads', 'num_attention_heads'],
      heads: ['linear_num_value_heads', 'num_attention_heads'],
      keyDim: ['linear_key_head_dim'],
      valueDim: ['linear_value_head_dim'],
      taps: { keys: ['linear_conv_kernel_dim'], otherwise: 4 },
      gateActivation: 'silu',
      epsilon: 1e-5,
      doubled: { keys: ['linear_allow_neg_eigval'], otherwise: true },
    },
    carried: { convolutions: CONVOLUTIONS_STAY, "a state's gates": GATES_STAY, "a state's parameters": STATES_STAY },
  },
  attention: { ...olmo2.attention, rope: { style: 'half', theta: 10_000, nullable: true } },
};
