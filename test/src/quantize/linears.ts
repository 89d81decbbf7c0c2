/**
 * Every architecture of test/fixtures/architectures with the number of linears that its blocks have: what the tests of every method go
 * through. docs/architectures.md lists them.
 */
export const DENSE: Readonly<Record<string, number>> = {
  apertus: 12,
  arcee: 12,
  cohere: 14,
  ernie4_5: 14,
  exaone4: 14,
  gemma: 14,
  gemma2: 14,
  gemma3_text: 21,
  glm4: 12,
  gpt2: 8,
  gpt_neox: 8,
  granite: 14,
  hunyuan_v1_dense: 14,
  llama: 14,
  'llama3-rope': 14,
  'llama-yarn-bias': 14,
  'mistral-window': 14,
  ministral3: 14,
  nemotron: 12,
  olmo2: 14,
  olmo3: 14,
  opt: 12,
  phi3: 8,
  qwen2: 14,
  qwen3: 14,
  seed_oss: 14,
  smollm3: 14,
  stablelm: 14,
  starcoder2: 12,
};

/** Mixtures: attention, experts, shared expert, dense MLP of two blocks. */
export const MIXTURES: Readonly<Record<string, number>> = {
  mixtral: 2 * (4 + 4 * 3),
  qwen2_moe: 2 * (4 + 4 * 3 + 3),
  qwen3_moe: 2 * (4 + 4 * 3),
  deepseek_v3: 2 * 5 + 3 + 4 * 3 + 3,
  gpt_oss: 2 * (4 + 4 * 3),
};
