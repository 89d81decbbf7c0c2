import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/**
 * LongCat-Flash (arXiv:2509.01322): a layer is two blocks of DeepSeek-V3's attention and an MLP; experts beside the first block's MLP,
 * some of which hand on what they read, and whose sum is added behind the second.
 */
export const longcatFlash: Architecture = {
  ...llama,
  modelType: 'longcat_flash',
  className: 'LongcatFlashForCausalLM',
  sizes: { layers: ['num_layers'] },
  parts: 2,
  only: {
    attention_method: 'MLA',
    zero_expert_type: 'identity',
    mla_scale_q_lora: true,
    mla_scale_kv_lora: true,
    norm_topk_prob: false,
  },
  norm: { kind: 'rms', epsilon: { keys: ['rms_norm_eps'], otherwise: 1e-5 } },
  mla: {
    names: {
      norm: 'input_layernorm.{part}',
      q: 'self_attn.{part}.q_proj',
      qA: 'self_attn.{part}.q_a_proj',
      qNorm: 'self_attn.{part}.q_a_layernorm',
      qB: 'self_attn.{part}.q_b_proj',
      kvA: 'self_attn.{part}.kv_a_proj_with_mqa',
      kvNorm: 'self_attn.{part}.kv_a_layernorm',
      kvB: 'self_attn.{part}.kv_b_proj',
      o: 'self_attn.{part}.o_proj',
    },
    bias: { keys: ['attention_bias'], otherwise: false },
    theta: 10_000_000,
    epsilon: 1e-6,
    interleaved: true,
    rankScales: true,
    scaleScores: true,
  },
  mlp: {
    names: {
      norm: 'post_attention_layernorm.{part}',
      gate: 'mlps.{part}.gate_proj',
      up: 'mlps.{part}.up_proj',
      down: 'mlps.{part}.down_proj',
    },
    bias: false,
    activation: { keys: ['hidden_act'], otherwise: 'silu' },
    intermediate: ['ffn_hidden_size', 'intermediate_size'],
  },
  experts: {
    names: {
      router: 'mlp.router.classifier',
      gate: 'mlp.experts.{expert}.gate_proj',
      up: 'mlp.experts.{expert}.up_proj',
      down: 'mlp.experts.{expert}.down_proj',
      choiceBias: 'mlp.router.e_score_correction_bias',
    },
    count: ['n_routed_experts', 'num_local_experts'],
    perToken: ['moe_topk', 'num_experts_per_tok'],
    intermediate: ['expert_ffn_hidden_size', 'moe_intermediate_size'],
    bias: { router: { keys: ['router_bias'], otherwise: false }, experts: false },
    idle: { keys: ['zero_expert_num'], otherwise: 256 },
    normalize: false,
    scale: { keys: ['routed_scaling_factor'], otherwise: 6 },
    shared: {
      names: { gate: 'mlps.{part}.gate_proj', up: 'mlps.{part}.up_proj', down: 'mlps.{part}.down_proj' },
      intermediate: { keys: ['ffn_hidden_size', 'intermediate_size'] },
    },
    every: 1,
    denseBlocks: 'mlp_only_layers',
  },
};
