/** What another GPTQ makes of a model. */
interface References {
  /** Perplexity of the unquantized model. */
  readonly unquantized: number;
  /** That of the best column by row. */
  readonly rows: Readonly<Record<string, number>>;
}

/**
 * Perplexities on the bundled books (books-valid.txt, ctx 512) by the name of the model's directory, of 128 windows of 512 tokens.
 * tiny-llama: the original GPTQ code with act-order and mse. tiny-qwen3-moe: GPTQModel 7.7 with act-order and static groups, mse on or
 * off (bench/results/2026-11-26-cpu-gptqmodel-moe.json).
 */
export const REFERENCES: Readonly<Record<string, References>> = {
  'tiny-llama': {
    unquantized: 24.8284,
    rows: {
      'W4 g128 sym': 25.728,
      'W4 g128 asym': 25.532,
      'W3 g128 sym': 28.755,
      'W3 g128 asym': 28.319,
      'W2 g64 sym': 54.244,
      'W2 g64 asym': 48.266,
    },
  },
  'tiny-qwen3-moe': {
    unquantized: 31.8759,
    rows: {
      'W4 g128 sym': 32.1219,
      'W4 g128 asym': 32.0808,
      'W3 g128 sym': 33.0624,
      'W3 g128 asym': 32.7758,
      'W2 g64 sym': 38.8352,
      'W2 g64 asym': 37.0564,
    },
  },
};
