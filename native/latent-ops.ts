import type { NativeRuntime, Tensor } from './binding.js';

/** The packed cache of latent attention (native/ops/latent.h) and the products around it, part of the operation table (ops.ts). */
export const latentOps = {
  /**
   * A product of every head's own (native/ops/linalg.h), with rows of the weight or, `turned`, their columns: what makes queries in
   * the space of the latent, and values of results.
   */
  headLinear: (rt: NativeRuntime, x: Tensor, weight: Tensor, y: Tensor, p: HeadProducts) =>
    rt.enqueue('head_linear', [x, weight], [y], { ...p }),

  /**
   * Attention in the space of the latent: q [B*queries, heads*(latent + rotary)] f16 or bf16, y [B*queries, heads*latent]; `queries`:
   * the newest tokens of a sequence ask, each up to itself.
   */
  latentDecode: (
    rt: NativeRuntime,
    q: Tensor,
    { pages, table, lengths }: LatentCache,
    y: Tensor,
    p: LatentForm & { heads: number; scale: number; queries?: number; splits?: number; rows?: number },
  ) => rt.enqueue('latent_decode', [q, pages, table, lengths], [y], { ...p }),

  /** Quantizes c f16 [T, latent] and packs it with rope f16 [T, rotary] as tokens first .. of the sequence of table I32 [P]. */
  latentPack: (
    rt: NativeRuntime,
    c: Tensor,
    rope: Tensor,
    table: Tensor,
    pages: Tensor,
    p: LatentForm & { first?: number },
  ) => rt.enqueue('latent_pack', [c, rope, table], [pages], { ...p }),

  /** A step's token of every sequence, packed at its end; lengths grow by 1. */
  latentAppend: (rt: NativeRuntime, c: Tensor, rope: Tensor, { pages, table, lengths }: LatentCache, p: LatentForm) =>
    rt.enqueue('latent_append', [c, rope, table], [pages, lengths], { ...p }),
} as const;

/** Heads, the weight's rows of each, and columns of what is read and written: `from` of fromDim, `to` of toDim. */
export interface HeadProducts {
  readonly heads: number;
  readonly n: number;
  readonly k: number;
  readonly first: number;
  readonly turned?: boolean;
  readonly fromDim: number;
  readonly from: number;
  readonly toDim: number;
  readonly to: number;
}

/** Pages U8 [pages, bytes], table I32 [B,P] of them, and tokens I32 [B]. */
export interface LatentCache {
  readonly pages: Tensor;
  readonly table: Tensor;
  readonly lengths: Tensor;
}

/** What the operations know of a cache of latents. */
export interface LatentForm {
  /** 2, 4, 8, or 16: latents as they are. */
  bits: number;
  /** Dims that share a scale and a zero: 32, 64 or 128 (default). */
  group?: number;
  /** Dims: a multiple of 64 from 64 to 512; of the rotary key, a multiple of 16 from 16 to 64. */
  latent: number;
  rotary: number;
  /** A multiple of 32. */
  pageTokens: number;
}
