/** Microseconds of decode attention over f16 that does not run here, as they were measured. */
const TORCH = {
  source: "torch's flash decode attention of f16, 32 query and 8 kv heads of 128 dims, as measured on an H200",
  device: /\bH200\b/,
  heads: 32,
  kvHeads: 8,
  headDim: 128,
  rows: [
    { sequences: 1, tokens: 8192, us: 36 },
    { sequences: 1, tokens: 32768, us: 61 },
    { sequences: 1, tokens: 131072, us: 161 },
    { sequences: 8, tokens: 8192, us: 83 },
    { sequences: 8, tokens: 32768, us: 259 },
    { sequences: 32, tokens: 8192, us: 407 },
  ],
} as const;

export interface AttentionQuery {
  readonly gpu: string | undefined;
  readonly sequences: number;
  readonly tokens: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
}

/** Torch's microseconds for as many tokens of f16 on the same class of device, where they are known. */
export function torchMicroseconds({ gpu, sequences, tokens, heads, kvHeads, headDim }: AttentionQuery): number | null {
  if (gpu === undefined || !TORCH.device.test(gpu)) return null;
  if (heads !== TORCH.heads || kvHeads !== TORCH.kvHeads || headDim !== TORCH.headDim) return null;
  return TORCH.rows.find((row) => row.sequences === sequences && row.tokens === tokens)?.us ?? null;
}

export const TORCH_SOURCE = TORCH.source;
