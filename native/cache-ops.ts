import type { NativeRuntime, Tensor } from './binding.js';
import type { AttentionParams } from './ops.js';

/**
 * Which sequences a step adds tokens to: starts I32 [B+1] of the new tokens, slots I32 [B] of the cache, totals I32 [B]:
 * tokens of the sequences, the new ones included.
 */
export interface CacheStep {
  readonly starts: Tensor;
  readonly slots: Tensor;
  readonly totals: Tensor;
}

/** Keys and values that are kept as they are, part of the operation table (ops.ts). */
export const cacheOps = {
  /**
   * k [T, kvHeads*headDim] and v [T, kvHeads*valueDim] become rows total - new .. total of their sequences' slots in keys and
   * values [S, R, ...], f32, f16 or bf16, rounded to nearest even.
   */
  cacheAppend: (
    rt: NativeRuntime,
    k: Tensor,
    v: Tensor,
    { starts, slots, totals }: CacheStep,
    keys: Tensor,
    values: Tensor,
  ) => rt.enqueue('cache_append', [k, v, starts, slots, totals], [keys, values]),

  /**
   * attention() of the new tokens over all tokens of their sequences, which are in the cache already: q [T, heads*headDim], keys
   * [S, R, kvHeads*headDim], values [S, R, kvHeads*valueDim], y [T, heads*valueDim]. most: the most new tokens of a
   * sequence, longest: the most tokens of one; neither may be too small. On the CPU blocks of keys are those of attention(), so that
   * with an f32 cache y is what that gives, bit by bit. On CUDA keys and values are of y's dtype.
   */
  cachedAttention: (
    rt: NativeRuntime,
    q: Tensor,
    keys: Tensor,
    values: Tensor,
    { starts, slots, totals }: CacheStep,
    y: Tensor,
    p: AttentionParams & { most: number; longest: number; splits?: number },
    sinks?: Tensor,
  ) => rt.enqueue('cached_attention', [q, keys, values, starts, slots, totals, ...(sinks ? [sinks] : [])], [y], p),
} as const;
