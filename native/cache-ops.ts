import type { NativeRuntime, Tensor } from './binding.js';
import type { AttentionParams, FirstColumns, RopeStyle } from './ops.js';

/**
 * Which sequences a step adds tokens to: starts I32 [B+1] of the new tokens, slots I32 [B] of the cache, totals I32 [B]:
 * tokens of the sequences, the new ones included.
 */
export interface CacheStep {
  readonly starts: Tensor;
  readonly slots: Tensor;
  readonly totals: Tensor;
}

/** Angles by position, cos and sin f32 [P, rotary/2], and the positions I32 [T] of a step's tokens. */
export interface Rotation {
  readonly cos: Tensor;
  readonly sin: Tensor;
  readonly positions: Tensor;
  readonly rotary: number;
  readonly style: RopeStyle;
}

/** RMS norms of every head of q and of k before they turn: weights [headDim]. */
export interface HeadNorms {
  readonly q: Tensor;
  readonly k: Tensor;
  readonly eps: number;
  readonly offset: number;
}

/** Keys and values that are kept as they are, part of the operation table (ops.ts). */
export const cacheOps = {
  /** k and v become rows of their sequences' slots in keys and values. */
  cacheAppend: (
    rt: NativeRuntime,
    k: Tensor,
    v: Tensor,
    { starts, slots, totals }: CacheStep,
    keys: Tensor,
    values: Tensor,
    p: Omit<FirstColumns, 'qFirst'> = {},
  ) => rt.enqueue('cache_append', [k, v, starts, slots, totals], [keys, values], p),

  /** rope of q and k, then cacheAppend, in one; with norms rmsnorm of each head comes first. */
  ropeAppend: (
    rt: NativeRuntime,
    { q, k, v }: { q: Tensor; k: Tensor; v: Tensor },
    { starts, slots, totals }: CacheStep,
    { y, keys, values }: { y: Tensor; keys: Tensor; values: Tensor },
    p: { heads: number; kvHeads: number; headDim: number; valueDim?: number } & FirstColumns,
    rotation?: Rotation,
    norms?: HeadNorms,
  ) => {
    const { cos, sin, positions, ...turn } = rotation ?? ({} as Partial<Rotation>);
    const { q: qNorm, k: kNorm, ...normed } = norms ?? ({} as Partial<HeadNorms>);
    rt.enqueue(
      'rope_append',
      [
        ...[q, k, v, starts, slots, totals],
        ...(cos && sin && positions ? [cos, sin, positions] : []),
        ...(qNorm && kNorm ? [qNorm, kNorm] : []),
      ],
      [y, keys, values],
      { ...p, ...turn, ...normed },
    );
  },

  /**
   * attention() of the new tokens over all tokens of their sequences, which are in the cache already. most: the most new tokens of a sequence, longest: the most tokens of one.
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
