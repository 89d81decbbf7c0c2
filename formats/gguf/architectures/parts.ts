/** How a tensor of GGUF becomes one of the checkpoint. */
export type Fix =
  /** Rows of a head lie interleaved, for the rotation of neighbours: names.ts's rowOrder, undone. */
  | 'interleaved-q'
  | 'interleaved-k'
  /** Rows of what turns of a head lie in halves, which the checkpoint has as neighbours: names.ts's halvesOrder, undone. */
  | 'halved-q'
  | 'halved-k'
  /** q, k and v one behind the other; the checkpoint has them head by head. */
  | 'heads'
  /** The checkpoint has [K, N]. */
  | 'turned'
  /** A vector that is a matrix of one row in the checkpoint. */
  | 'one-row'
  /** [channels, taps] of a convolution, [channels, 1, taps] in the checkpoint. */
  | 'squeezed'
  /** [n, 1] of a vector. */
  | 'column'
  /** [groups, n / groups] of a vector. */
  | 'groups';

/** Where a tensor goes: its name with {expert} where it is a stack, of experts or others; without a suffix of its own it keeps .weight or .bias. */
export interface PartName {
  readonly to: string;
  readonly fix?: Fix;
  /** Where heads of values of a gated delta rule stand, which the file has in another order: all rows, those behind keys, or columns. */
  readonly states?: 'rows' | 'behind' | 'columns';
  /** It has this half of the rows of what it is in the checkpoint. */
  readonly half?: 'first' | 'second';
  /** The file has -exp of the checkpoint's numbers. */
  readonly minusExp?: true;
  /** A norm that has no 1 added where others of the model have. */
  readonly plain?: true;
  /** Rows of zeros follow in the file, up to the size of the vocabulary. */
  readonly padded?: true;
}

/** By the part of a block, with or without .weight or .bias; NAME. has neither. */
export type PartNames = Readonly<Record<string, PartName | string>>;

/** The outer tensors and the parts of a block of Llama and its kin. */
export const LLAMA_OUTER: PartNames = {
  'token_embd.weight': 'model.embed_tokens.weight',
  'output_norm.weight': 'model.norm.weight',
  'output.weight': 'lm_head.weight',
};

const ATTENTION = {
  attn_norm: 'input_layernorm',
  attn_q: 'self_attn.q_proj',
  attn_k: 'self_attn.k_proj',
  attn_v: 'self_attn.v_proj',
  attn_output: 'self_attn.o_proj',
  attn_q_norm: 'self_attn.q_norm',
  attn_k_norm: 'self_attn.k_norm',
};

const MLP = { ffn_gate: 'mlp.gate_proj', ffn_up: 'mlp.up_proj', ffn_down: 'mlp.down_proj' };

export const LLAMA_BLOCK: PartNames = { ...ATTENTION, ffn_norm: 'post_attention_layernorm', ...MLP };

/** Parts of a mixture of experts: module paths of the router, of an expert's gate, up and down, and of those of the MLP beside them. */
export function experts(
  router: string,
  expert: readonly [gate: string, up: string, down: string],
  shared?: readonly [gate: string, up: string, down: string],
): PartNames {
  const [gate, up, down] = expert;
  const beside = shared && { ffn_gate_shexp: shared[0], ffn_up_shexp: shared[1], ffn_down_shexp: shared[2] };
  return { ffn_gate_inp: router, ...beside, ffn_gate_exps: gate, ffn_up_exps: up, ffn_down_exps: down };
}

/** PATH.gate_proj, PATH.up_proj, PATH.down_proj. */
export const gated = (path: string): readonly [string, string, string] => [
  `${path}.gate_proj`,
  `${path}.up_proj`,
  `${path}.down_proj`,
];

const EXPERT = gated('mlp.experts.{expert}');

/** Qwen's, and what other families have under the same names. */
export const EXPERT_BLOCK: PartNames = { ...LLAMA_BLOCK, ...experts('mlp.gate', EXPERT) };

export const QWEN2_MOE_BLOCK: PartNames = {
  ...LLAMA_BLOCK,
  ...experts('mlp.gate', EXPERT, gated('mlp.shared_expert')),
  ffn_gate_inp_shexp: { to: 'mlp.shared_expert_gate', fix: 'one-row' },
};

/** Experts beside shared ones, chosen with a bias, in some blocks. */
export const SHARED_BLOCK: PartNames = {
  ...LLAMA_BLOCK,
  ...experts('mlp.gate', EXPERT, gated('mlp.shared_experts')),
  'exp_probs_b.bias': 'mlp.gate.e_score_correction_bias',
};

export const MIXTRAL_BLOCK: PartNames = {
  ...LLAMA_BLOCK,
  ...experts(
    'block_sparse_moe.gate',
    ['w1', 'w3', 'w2'].map((name) => `block_sparse_moe.experts.{expert}.${name}`) as [string, string, string],
  ),
};

/** Rows of q and k interleaved, as llama.cpp's converter stores those of models that rotate halves. */
export function interleaved(names: PartNames): PartNames {
  return {
    ...names,
    attn_q: { to: names.attn_q as string, fix: 'interleaved-q' },
    attn_k: { to: names.attn_k as string, fix: 'interleaved-k' },
  };
}

/** Norms behind the branches alone. */
export const AFTER_BLOCK: PartNames = {
  ...ATTENTION,
  ...MLP,
  post_attention_norm: 'post_attention_layernorm',
  post_ffw_norm: 'post_feedforward_layernorm',
};

/** Gate and up, which the checkpoint has in one linear. */
export const parted = (gate: string, up: string, both: string): PartNames => ({
  [gate]: { to: both, half: 'first' },
  [up]: { to: both, half: 'second' },
});

/** Per-layer embeddings of Gemma's. */
export const PER_LAYER_OUTER: PartNames = {
  ...LLAMA_OUTER,
  'per_layer_token_embd.weight': { to: 'model.embed_tokens_per_layer.weight', padded: true },
  'per_layer_model_proj.weight': 'model.per_layer_model_projection.weight',
  'per_layer_proj_norm.weight': 'model.per_layer_projection_norm.weight',
};

export const PER_LAYER_BLOCK: PartNames = {
  inp_gate: 'per_layer_input_gate',
  proj: 'per_layer_projection',
  post_norm: 'post_per_layer_input_norm',
};

/** Norms before and behind the branches. */
export const GEMMA_BLOCK: PartNames = { ...AFTER_BLOCK, ffn_norm: 'pre_feedforward_layernorm' };

/** The same names as Llama's, but that the norm of the MLP is called after where it stands. */
export const postNormed = ({ ffn_norm, ...names }: PartNames): PartNames => ({
  ...names,
  post_attention_norm: ffn_norm as string,
});

export const PHI3_BLOCK: PartNames = {
  ...LLAMA_BLOCK,
  attn_qkv: 'self_attn.qkv_proj',
  ffn_up: 'mlp.gate_up_proj',
};

export const GLM4_BLOCK: PartNames = {
  ...LLAMA_BLOCK,
  ffn_up: 'mlp.gate_up_proj',
  post_attention_norm: 'post_self_attn_layernorm',
  post_ffw_norm: 'post_mlp_layernorm',
};

export const STARCODER2_BLOCK: PartNames = { ...LLAMA_BLOCK, ffn_up: 'mlp.c_fc', ffn_down: 'mlp.c_proj' };

export const GPT_OSS_BLOCK: PartNames = {
  ...postNormed(LLAMA_BLOCK),
  ...experts('mlp.router', EXPERT),
  'attn_sinks.weight': 'self_attn.sinks',
};

/** Latent attention. */
export const LATENT = {
  attn_q_a: 'self_attn.q_a_proj',
  attn_q_a_norm: 'self_attn.q_a_layernorm',
  attn_q_b: 'self_attn.q_b_proj',
  attn_kv_a_mqa: 'self_attn.kv_a_proj_with_mqa',
  attn_kv_a_norm: 'self_attn.kv_a_layernorm',
  attn_kv_b: 'self_attn.kv_b_proj',
};

export const DEEPSEEK_BLOCK: PartNames = { ...SHARED_BLOCK, ...LATENT };

export const GPT2_OUTER: PartNames = {
  'token_embd.weight': 'transformer.wte.weight',
  'position_embd.weight': 'transformer.wpe.weight',
  'output_norm.weight': 'transformer.ln_f.weight',
  'output_norm.bias': 'transformer.ln_f.bias',
  'output.weight': 'lm_head.weight',
};

export const GPT2_BLOCK: PartNames = {
  attn_norm: 'ln_1',
  attn_qkv: { to: 'attn.c_attn', fix: 'turned' },
  attn_output: { to: 'attn.c_proj', fix: 'turned' },
  ffn_norm: 'ln_2',
  ffn_up: { to: 'mlp.c_fc', fix: 'turned' },
  ffn_down: { to: 'mlp.c_proj', fix: 'turned' },
};

export const NEOX_OUTER: PartNames = {
  'token_embd.weight': 'gpt_neox.embed_in.weight',
  'output_norm.weight': 'gpt_neox.final_layer_norm.weight',
  'output_norm.bias': 'gpt_neox.final_layer_norm.bias',
  'output.weight': 'embed_out.weight',
};

export const NEOX_BLOCK: PartNames = {
  attn_norm: 'input_layernorm',
  attn_qkv: { to: 'attention.query_key_value', fix: 'heads' },
  attn_output: 'attention.dense',
  ffn_norm: 'post_attention_layernorm',
  ffn_up: 'mlp.dense_h_to_4h',
  ffn_down: 'mlp.dense_4h_to_h',
};
