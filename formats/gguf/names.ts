/** An architecture of llama.cpp and how a checkpoint's config.json says it. */
export interface GgufArchitecture {
  /** general.architecture. */
  readonly name: string;
  /** Rows of q and k are stored with the two halves of each head interleaved, for the rotation of neighbours. */
  readonly interleaved: boolean;
  /** Mixture of experts: keys of the numbers of experts and of their width. */
  readonly experts?: { readonly count: readonly string[]; readonly width: readonly string[] };
  /** Whether llama.cpp divides the router's chosen weights by their sum. */
  readonly normalized?: boolean;
  /** What the class takes where config.json does not say, if not rope_theta 10000, rms_norm_eps 1e-6, head_dim hidden / heads. */
  readonly otherwise?: { readonly theta?: number; readonly epsilon?: number; readonly headDim?: number };
}

const QWEN_EXPERTS = { count: ['num_experts', 'num_local_experts'], width: ['moe_intermediate_size'] };

/** By `model_type` of config.json. */
export const GGUF_ARCHITECTURES: Readonly<Record<string, GgufArchitecture>> = {
  llama: { name: 'llama', interleaved: true },
  mistral: { name: 'llama', interleaved: true },
  mixtral: {
    name: 'llama',
    interleaved: true,
    experts: { count: ['num_local_experts'], width: ['intermediate_size'] },
    normalized: true,
    otherwise: { theta: 1_000_000, epsilon: 1e-5 },
  },
  qwen2: { name: 'qwen2', interleaved: false },
  qwen3: { name: 'qwen3', interleaved: false, otherwise: { headDim: 128 } },
  qwen2_moe: { name: 'qwen2moe', interleaved: false, experts: QWEN_EXPERTS, normalized: false },
  qwen3_moe: { name: 'qwen3moe', interleaved: false, experts: QWEN_EXPERTS, normalized: true },
};

/** Where a tensor of a checkpoint goes. */
export interface GgufName {
  readonly name: string;
  /** The slice of a stack of experts. */
  readonly expert?: number;
  /** Rows are those of query or of key heads. */
  readonly heads?: 'q' | 'k';
}

/** Names of a checkpoint → names of GGUF: outer tensors, parts of a block, linears of an expert. */
export const OUTER: Readonly<Record<string, string>> = {
  'model.embed_tokens.weight': 'token_embd.weight',
  'model.norm.weight': 'output_norm.weight',
  'lm_head.weight': 'output.weight',
};

export const INNER: Readonly<Record<string, string>> = {
  input_layernorm: 'attn_norm',
  'self_attn.q_proj': 'attn_q',
  'self_attn.k_proj': 'attn_k',
  'self_attn.v_proj': 'attn_v',
  'self_attn.o_proj': 'attn_output',
  'self_attn.q_norm': 'attn_q_norm',
  'self_attn.k_norm': 'attn_k_norm',
  post_attention_layernorm: 'ffn_norm',
  'mlp.gate_proj': 'ffn_gate',
  'mlp.up_proj': 'ffn_up',
  'mlp.down_proj': 'ffn_down',
  'mlp.gate': 'ffn_gate_inp',
  'block_sparse_moe.gate': 'ffn_gate_inp',
  'mlp.shared_expert.gate_proj': 'ffn_gate_shexp',
  'mlp.shared_expert.up_proj': 'ffn_up_shexp',
  'mlp.shared_expert.down_proj': 'ffn_down_shexp',
  'mlp.shared_expert_gate': 'ffn_gate_inp_shexp',
};

export const EXPERTS: Readonly<Record<string, string>> = {
  gate_proj: 'ffn_gate_exps',
  up_proj: 'ffn_up_exps',
  down_proj: 'ffn_down_exps',
  w1: 'ffn_gate_exps',
  w3: 'ffn_up_exps',
  w2: 'ffn_down_exps',
};

/** The name in GGUF of tensor `name` of a checkpoint; undefined for one that llama.cpp has no place for. */
export function ggufName(name: string): GgufName | undefined {
  const outer = OUTER[name];
  if (outer !== undefined) return { name: outer };
  const block = /^model\.layers\.(\d+)\.(.+)\.(weight|bias)$/.exec(name);
  if (!block) return undefined;
  const [, layer, path, kind] = block as unknown as [string, string, string, string];
  const expert = /^(?:mlp|block_sparse_moe)\.experts\.(\d+)\.(\w+)$/.exec(path);
  if (expert) {
    const stack = Object.hasOwn(EXPERTS, expert[2] as string) ? EXPERTS[expert[2] as string] : undefined;
    if (stack === undefined || kind !== 'weight') return undefined;
    return { name: `blk.${layer}.${stack}.weight`, expert: Number(expert[1]) };
  }
  const inner = Object.hasOwn(INNER, path) ? INNER[path] : undefined;
  if (inner === undefined) return undefined;
  const heads = inner === 'attn_q' ? 'q' : inner === 'attn_k' ? 'k' : undefined;
  return { name: `blk.${layer}.${inner}.${kind}`, ...(heads && { heads }) };
}

/** Order of tensors in the file: the outer ones, then block by block. */
export function ggufOrder(name: string): number {
  const block = /^blk\.(\d+)\.(\w+)\./.exec(name);
  if (!block) return ['token_embd.weight', 'output_norm.weight', 'output.weight', 'rope_freqs.weight'].indexOf(name);
  const parts = [...new Set([...Object.values(INNER), ...Object.values(EXPERTS)])];
  return (Number(block[1]) + 1) * 100 + parts.indexOf(block[2] as string);
}

/**
 * Row r of GGUF's q or k is row order[r] of the checkpoint's: of each head of 2d rows, row 2i + h is row d h + i. Without
 * heads the rows keep their places.
 */
export function rowOrder(rows: number, heads: number | undefined): Int32Array {
  if (heads === undefined) return Int32Array.from({ length: rows }, (_, row) => row);
  const size = rows / heads;
  return Int32Array.from({ length: rows }, (_, row) => {
    const within = row % size;
    return row - within + (within % 2) * (size / 2) + Math.floor(within / 2);
  });
}
