const LATENT =
  'llama.cpp has its latent keys turned over alone, and codes whose groups run along the latent vector cannot be turned';

/** Architectures that llama.cpp has and lpq does not write, with the reason, by model_type of config.json. */
export const GGUF_REFUSED: Readonly<Record<string, string>> = {
  deepseek_v32: LATENT,
  deepseek_v4: "llama.cpp's names for its compressors and hyper-connections are not in lpq's table",
  falcon_h1: 'llama.cpp has no keys for its multipliers, which would have to go into the weights and change the codes',
  gemma3n_text:
    "llama.cpp wants keys and values of blocks that share those of others, and stacks AltUp's linears in one tensor",
  glm_moe_dsa: LATENT,
  kimi_linear:
    'llama.cpp has its latent keys turned over alone: beside them whole, it puts parts of keys in another order than those of queries',
  minimax_m3_vl_text: "llama.cpp's indexer is not in lpq's table",
  minimax_m3_text: "llama.cpp's indexer is not in lpq's table",
  phimoe: 'llama.cpp computes RMS norms and a softmax router, where it has LayerNorms and SparseMixer',
};
