const LATENT =
  'llama.cpp wants kv_b_proj in two tensors, that of keys turned over: groups of codes run along the latent vector, so keys would have to be floats, and values beside them codes';

/** Architectures that llama.cpp has and lpq does not write, with the reason, by model_type of config.json. */
export const GGUF_REFUSED: Readonly<Record<string, string>> = {
  deepseek_v32: LATENT,
  deepseek_v4:
    "its codes would fit, but llama.cpp's names and keys for compressors, indexers, hyper-connections and tables of experts are not in lpq's table",
  falcon_h1:
    'llama.cpp has no keys for its multipliers: those of MLPs and states stand where no norm takes them, and f16 scales of groups would round them',
  glm_moe_dsa: LATENT,
  kimi_linear:
    'llama.cpp wants kv_b_proj in two tensors, that of keys turned over: with it whole, it puts parts of keys in another order than those of queries',
  phimoe:
    'llama.cpp computes RMS norms where it has LayerNorms, and a softmax of all experts where SparseMixer leaves out those far below the best',
};
