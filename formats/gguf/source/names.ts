import { EXPERTS, INNER, OUTER } from '../names.js';

/** How a tensor of GGUF becomes one of the checkpoint. */
export type Fix =
  /** Rows of a head lie interleaved, for the rotation of neighbours: names.ts's rowOrder, undone. */
  | 'interleaved-q'
  | 'interleaved-k'
  /** q, k and v one behind the other; the checkpoint has them head by head. */
  | 'heads'
  /** The checkpoint has [K, N]. */
  | 'turned'
  /** A vector that is a matrix of one row in the checkpoint. */
  | 'one-row';

/** Where a tensor goes: its name with {expert} where it is a stack of experts; without a suffix of its own it keeps .weight or .bias. */
export interface SourceName {
  readonly to: string;
  readonly fix?: Fix;
}

/** By the part of a block, with or without .weight or .bias. */
export type SourceNames = Readonly<Record<string, SourceName | string>>;

const turnedOver = (names: Readonly<Record<string, string>>, unless: RegExp): Record<string, string> =>
  Object.fromEntries(
    Object.entries(names)
      .filter(([name]) => !unless.test(name))
      .map(([name, part]) => [part, name]),
  );

/** The outer tensors and the parts of a block of Llama and its kin: what lpq writes, the other way round. */
export const LLAMA_OUTER: SourceNames = turnedOver(OUTER, /^$/);
export const LLAMA_BLOCK: SourceNames = turnedOver(INNER, /block_sparse_moe/);
export const EXPERT_BLOCK: SourceNames = Object.fromEntries(
  Object.entries(turnedOver(EXPERTS, /^w\d$/)).map(([part, name]) => [part, `mlp.experts.{expert}.${name}`]),
);
export const MIXTRAL_BLOCK: SourceNames = {
  ...LLAMA_BLOCK,
  ffn_gate_inp: 'block_sparse_moe.gate',
  ...Object.fromEntries(
    Object.entries(turnedOver(EXPERTS, /_proj$/)).map(([part, name]) => [
      part,
      `block_sparse_moe.experts.{expert}.${name}`,
    ]),
  ),
};

/** Rows of q and k interleaved, as llama.cpp's converter stores those of models that rotate halves. */
export function interleaved(names: SourceNames): SourceNames {
  return {
    ...names,
    attn_q: { to: names.attn_q as string, fix: 'interleaved-q' },
    attn_k: { to: names.attn_k as string, fix: 'interleaved-k' },
  };
}

/** Norms behind the branches. */
export const AFTER_BLOCK: SourceNames = {
  ...LLAMA_BLOCK,
  post_attention_norm: 'post_attention_layernorm',
  post_ffw_norm: 'post_feedforward_layernorm',
};

/** Norms before and behind the branches. */
export const GEMMA_BLOCK: SourceNames = {
  ...AFTER_BLOCK,
  ffn_norm: 'pre_feedforward_layernorm',
};

export const PHI3_BLOCK: SourceNames = {
  ...LLAMA_BLOCK,
  attn_qkv: 'self_attn.qkv_proj',
  ffn_up: 'mlp.gate_up_proj',
};

export const GLM4_BLOCK: SourceNames = {
  ...LLAMA_BLOCK,
  ffn_up: 'mlp.gate_up_proj',
  post_attention_norm: 'post_self_attn_layernorm',
  post_ffw_norm: 'post_mlp_layernorm',
};

export const STARCODER2_BLOCK: SourceNames = { ...LLAMA_BLOCK, ffn_up: 'mlp.c_fc', ffn_down: 'mlp.c_proj' };

export const GPT_OSS_BLOCK: SourceNames = {
  ...LLAMA_BLOCK,
  ...EXPERT_BLOCK,
  post_attention_norm: 'post_attention_layernorm',
  'attn_sinks.weight': 'self_attn.sinks',
  ffn_gate_inp: 'mlp.router',
};

export const DEEPSEEK_BLOCK: SourceNames = {
  ...LLAMA_BLOCK,
  ...EXPERT_BLOCK,
  attn_q_a: 'self_attn.q_a_proj',
  attn_q_a_norm: 'self_attn.q_a_layernorm',
  attn_q_b: 'self_attn.q_b_proj',
  attn_kv_a_mqa: 'self_attn.kv_a_proj_with_mqa',
  attn_kv_a_norm: 'self_attn.kv_a_layernorm',
  attn_kv_b: 'self_attn.kv_b_proj',
  ffn_gate_inp: 'mlp.gate',
  'exp_probs_b.bias': 'mlp.gate.e_score_correction_bias',
  ffn_gate_shexp: 'mlp.shared_experts.gate_proj',
  ffn_up_shexp: 'mlp.shared_experts.up_proj',
  ffn_down_shexp: 'mlp.shared_experts.down_proj',
};

export const GPT2_OUTER: SourceNames = {
  'token_embd.weight': 'transformer.wte.weight',
  'position_embd.weight': 'transformer.wpe.weight',
  'output_norm.weight': 'transformer.ln_f.weight',
  'output_norm.bias': 'transformer.ln_f.bias',
  'output.weight': 'lm_head.weight',
};

export const GPT2_BLOCK: SourceNames = {
  attn_norm: 'ln_1',
  ffn_norm: 'ln_2',
  attn_qkv: { to: 'attn.c_attn', fix: 'turned' },
  attn_output: { to: 'attn.c_proj', fix: 'turned' },
  ffn_up: { to: 'mlp.c_fc', fix: 'turned' },
  ffn_down: { to: 'mlp.c_proj', fix: 'turned' },
};

export const NEOX_OUTER: SourceNames = {
  'token_embd.weight': 'gpt_neox.embed_in.weight',
  'output_norm.weight': 'gpt_neox.final_layer_norm.weight',
  'output_norm.bias': 'gpt_neox.final_layer_norm.bias',
  'output.weight': 'embed_out.weight',
};

export const NEOX_BLOCK: SourceNames = {
  attn_norm: 'input_layernorm',
  ffn_norm: 'post_attention_layernorm',
  attn_qkv: { to: 'attention.query_key_value', fix: 'heads' },
  attn_output: 'attention.dense',
  ffn_up: 'mlp.dense_h_to_4h',
  ffn_down: 'mlp.dense_4h_to_h',
};
