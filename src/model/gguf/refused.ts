const LATENT =
  'llama.cpp has its latent keys turned over alone, and codes whose groups run along the latent vector cannot be turned';

/** Architectures that llama.cpp has and lpq does not write, with the reason, by model_type of config.json. */
export const GGUF_REFUSED: Readonly<Record<string, string>> = {
  apertus: "llama.cpp reads xIELU's parameters as keys of the file, and config.json does not have them",
  deepseek_v32: LATENT,
  deepseek_v4: "llama.cpp's names for its compressors and hyper-connections are not in lpq's table",
  falcon_h1: 'llama.cpp has no keys for its multipliers, which would have to go into the weights and change the codes',
  gemma3n_text: "llama.cpp's names for AltUp and LAuReL are not in lpq's table",
  glm_moe_dsa: LATENT,
  granitemoehybrid: 'gate and up of its MLP are one linear, and llama.cpp has a tensor for each',
  kimi_linear: "llama.cpp's convolutions of q, k and v are not in lpq's table",
  minimax_m3_vl_text: "llama.cpp's indexer is not in lpq's table",
  minimax_m3_text: "llama.cpp's indexer is not in lpq's table",
  phimoe: 'llama.cpp computes RMS norms and a softmax router, where it has LayerNorms and SparseMixer',
};
