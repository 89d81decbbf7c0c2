// What a GGUF file of a model must say, in tables of the verifier's own.

type Json = Readonly<Record<string, unknown>>;

const LINEARS: Readonly<Record<string, string>> = {
  attn_norm: 'input_layernorm',
  attn_q: 'self_attn.q_proj',
  attn_k: 'self_attn.k_proj',
  attn_v: 'self_attn.v_proj',
  attn_output: 'self_attn.o_proj',
  attn_q_norm: 'self_attn.q_norm',
  attn_k_norm: 'self_attn.k_norm',
  ffn_norm: 'post_attention_layernorm',
  ffn_gate: 'mlp.gate_proj',
  ffn_up: 'mlp.up_proj',
  ffn_down: 'mlp.down_proj',
  ffn_gate_inp: 'mlp.gate',
  ffn_gate_shexp: 'mlp.shared_expert.gate_proj',
  ffn_up_shexp: 'mlp.shared_expert.up_proj',
  ffn_down_shexp: 'mlp.shared_expert.down_proj',
  ffn_gate_inp_shexp: 'mlp.shared_expert_gate',
};

/** The checkpoint's name of a tensor of the file; undefined for one that no checkpoint has. */
export function checkpointName(tensor: string, config: Json): string | undefined {
  if (tensor === 'token_embd.weight') return 'model.embed_tokens.weight';
  if (tensor === 'output_norm.weight') return 'model.norm.weight';
  if (tensor === 'output.weight') return 'lm_head.weight';
  const [, layer, part, kind, expert] = /^blk\.(\d+)\.(\w+)\.(weight|bias)(?:\[(\d+)\])?$/.exec(tensor) ?? [];
  if (part === undefined) return undefined;
  const mixtral = config.model_type === 'mixtral';
  const prefix = `model.layers.${layer}.`;
  if (expert !== undefined) {
    const gated = /^ffn_(gate|up|down)_exps$/.exec(part)?.[1] as 'gate' | 'up' | 'down' | undefined;
    if (!gated || kind !== 'weight') return undefined;
    return mixtral
      ? `${prefix}block_sparse_moe.experts.${expert}.${{ gate: 'w1', up: 'w3', down: 'w2' }[gated]}.weight`
      : `${prefix}mlp.experts.${expert}.${gated}_proj.weight`;
  }
  if (mixtral && part === 'ffn_gate_inp') return `${prefix}block_sparse_moe.gate.weight`;
  return Object.hasOwn(LINEARS, part) ? `${prefix}${LINEARS[part]}.${kind}` : undefined;
}

/** For every row of a tensor of the file, the row of the checkpoint's that it is. */
export function storedOrder(tensor: string, rows: number, config: Json): Int32Array {
  const order = Int32Array.from({ length: rows }, (_, row) => row);
  const llama = ['llama', 'mistral', 'mixtral'].includes(String(config.model_type));
  const which = /^blk\.\d+\.attn_([qk])\./.exec(tensor)?.[1];
  if (!llama || which === undefined) return order;
  const all = Number(config.num_attention_heads);
  const heads = which === 'q' ? all : Number(config.num_key_value_heads ?? all);
  const half = rows / heads / 2;
  // llama.cpp turns neighbours (2i, 2i + 1) where the checkpoint turns i and i + half.
  for (let head = 0; head < heads; head++)
    for (let i = 0; i < half; i++)
      for (let side = 0; side < 2; side++) order[head * 2 * half + 2 * i + side] = head * 2 * half + side * half + i;
  return order;
}

/** Keys of the metadata and what config.json makes of them; numbers compare as f32. */
export function expectedMetadata(config: Json): Map<string, string | number> {
  const type = String(config.model_type);
  const name = { mistral: 'llama', mixtral: 'llama', qwen2_moe: 'qwen2moe', qwen3_moe: 'qwen3moe' }[type] ?? type;
  const rope = { ...(config.rope_scaling as Json | null), ...(config.rope_parameters as Json | null) };
  const heads = Number(config.num_attention_heads);
  const headDim = config.head_dim ?? (type.startsWith('qwen3') ? 128 : Number(config.hidden_size) / heads);
  const expected: [string, unknown][] = [
    ['general.architecture', name],
    [`${name}.block_count`, config.num_hidden_layers],
    [`${name}.embedding_length`, config.hidden_size],
    [`${name}.feed_forward_length`, config.intermediate_size],
    [`${name}.context_length`, config.max_position_embeddings],
    [`${name}.vocab_size`, config.vocab_size],
    [`${name}.attention.head_count`, heads],
    [`${name}.attention.head_count_kv`, config.num_key_value_heads ?? heads],
    [`${name}.attention.key_length`, headDim],
    [`${name}.rope.dimension_count`, headDim],
    [`${name}.attention.layer_norm_rms_epsilon`, config.rms_norm_eps ?? 1e-6],
    [`${name}.rope.freq_base`, rope.rope_theta ?? config.rope_theta ?? 10_000],
  ];
  const experts = config.num_local_experts ?? config.num_experts;
  if (type === 'mixtral' || type.endsWith('_moe')) {
    expected.push([`${name}.expert_count`, config.num_experts ?? experts]);
    expected.push([`${name}.expert_used_count`, config.num_experts_per_tok]);
  }
  const scaling = rope.rope_type ?? rope.type;
  if (scaling === 'linear' || scaling === 'yarn') {
    expected.push([`${name}.rope.scaling.type`, scaling]);
    expected.push([`${name}.rope.scaling.factor`, rope.factor]);
  }
  return new Map(expected as [string, string | number][]);
}

/** rope_freqs.weight of Llama 3.1's scaling; undefined for a model without. */
export function expectedRopeFactors(config: Json): Float64Array | undefined {
  const rope = { ...(config.rope_scaling as Json | null), ...(config.rope_parameters as Json | null) };
  if ((rope.rope_type ?? rope.type) !== 'llama3') return undefined;
  const { factor, low_freq_factor: low, high_freq_factor: high } = rope as Record<string, number>;
  const context = Number(rope.original_max_position_embeddings ?? config.max_position_embeddings);
  const headDim = Number(config.head_dim ?? Number(config.hidden_size) / Number(config.num_attention_heads));
  const theta = Number(rope.rope_theta ?? config.rope_theta ?? 10_000);
  return Float64Array.from({ length: headDim / 2 }, (_, i) => {
    const turns = context / (2 * Math.PI * theta ** ((2 * i) / headDim));
    if (turns > (high as number)) return 1;
    if (turns < (low as number)) return factor as number;
    const smooth = (turns - (low as number)) / ((high as number) - (low as number));
    return 1 / ((1 - smooth) / (factor as number) + smooth);
  });
}
