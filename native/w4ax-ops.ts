import type { NativeRuntime, Tensor } from './binding.js';

/** W4Ax (docs/fmpq.md), part of the operation table (ops.ts); on CUDA quantizeActivations, quantizeComet and gemmComet. */
export const w4axOps = {
  /** Codes of 4 or 8 bits a block of 128 columns (native/ops/w4ax.h). */
  quantizeActivations: (
    rt: NativeRuntime,
    x: Tensor,
    form: { bits: Tensor; clip: Tensor; order?: Tensor },
    out: { codes: Tensor; scales: Tensor },
  ) =>
    rt.enqueue(
      'quantize_activations',
      [x, form.bits, form.clip, ...(form.order ? [form.order] : [])],
      [out.codes, out.scales],
    ),

  /** x = code * scale. */
  dequantizeActivations: (rt: NativeRuntime, q: { codes: Tensor; scales: Tensor }, x: Tensor) =>
    rt.enqueue('dequantize_activations', [q.codes, q.scales], [x]),

  /** y[t][j] = x[t][order[j]]. */
  gatherColumns: (rt: NativeRuntime, x: Tensor, order: Tensor, y: Tensor) =>
    rt.enqueue('gather_columns', [x, order], [y]),

  /** Integer products of such codes, rescaled block by block; with `accumulate` they are added to y. */
  gemmW4ax: (
    rt: NativeRuntime,
    x: { codes: Tensor; scales: Tensor },
    w: { codes: Tensor; scales: Tensor },
    bias: Tensor | undefined,
    y: Tensor,
    p: { accumulate?: boolean } = {},
  ) =>
    rt.enqueue(
      'gemm_w4ax',
      [x.codes, x.scales, w.codes, w.scales, ...(bias ? [bias] : [])],
      [y],
      p.accumulate ? { accumulate: 1 } : {},
    ),

  /** quantizeActivations in the form that gemmComet reads. */
  quantizeComet: (
    rt: NativeRuntime,
    x: Tensor,
    form: { bits: Tensor; clip: Tensor; blocks: Tensor; order?: Tensor },
    out: { x8: Tensor; x4: Tensor; scales: Tensor },
  ) =>
    rt.enqueue(
      'quantize_comet',
      [x, form.bits, form.clip, form.blocks, ...(form.order ? [form.order] : [])],
      [out.x8, out.x4, out.scales],
    ),

  /**
   * gemmW4ax of such activations and 4-bit weights in the layout comet (native/ops/gemm_comet.h). `groups`: whole factors i8 of a
   * two-level grid, whose scales are those of rows.
   */
  gemmComet: (
    rt: NativeRuntime,
    x: { x8: Tensor; x4: Tensor; scales: Tensor; blocks: Tensor },
    w: { codes: Tensor; scales: Tensor; groups?: Tensor },
    bias: Tensor | undefined,
    y: Tensor,
    p: {
      tokens?: number;
      width?: 4 | 8;
      blocks?: number;
      stages?: number;
      reduce?: 'global' | 'cluster';
      shared?: number;
      kernel?: 'few' | 'act8' | 'mma';
    } = {},
  ) =>
    rt.enqueue(
      'gemm_comet',
      [x.x8, x.x4, x.scales, x.blocks, w.codes, w.scales, ...(w.groups ? [w.groups] : []), ...(bias ? [bias] : [])],
      [y],
      { ...p, ...(w.groups && { groupScales: 1 }) },
    ),

  /** most f32 [K] = max(most, |x|) and moments f64 [K] += x^2 over the rows of x f32 [T,K]. Fails on NaN and infinity. */
  channelStatistics: (rt: NativeRuntime, x: Tensor, most: Tensor, moments: Tensor) =>
    rt.enqueue('channel_statistics', [x], [most, moments]),

  /**
   * errors f64 [J/128,C]: for each block of 128 entries of order I32 [J] and each choice of bits and clip, the sum over rows
   * of weight * (x - its dequantized code)^2; x f32 [T,K], weight f32 [K].
   */
  blockErrors: (
    rt: NativeRuntime,
    x: Tensor,
    weight: Tensor,
    order: Tensor,
    errors: Tensor,
    p: { bits: readonly number[]; clips: readonly number[] },
  ) => rt.enqueue('block_errors', [x, weight, order], [errors], p),

  /**
   * y f32 [T,C] = x as a cache with `bits` a value gives it back: every channel over runs of `group` tokens of a sequence has
   * zero = f16(min) and scale = f16((max - zero) / (2^bits - 1)), value = fma(code, scale, zero); the last run of a sequence
   * may be shorter. `clip`: min and max are first drawn in by i / 40 of the range, i of 0 to 7 with the least squared error. y may be x.
   */
  simulateKv: (
    rt: NativeRuntime,
    x: Tensor,
    starts: Tensor,
    y: Tensor,
    { bits, group, clip }: { bits: number; group: number; clip?: boolean | undefined },
  ) => rt.enqueue('simulate_kv', [x, starts], [y], { bits, group, ...(clip && { clip: 1 }) }),
} as const;
