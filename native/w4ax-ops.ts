import type { NativeRuntime, Tensor } from './binding.js';

/** W4Ax (docs/fmpq.md), part of the operation table (ops.ts); on CUDA quantizeActivations, quantizeComet and gemmComet. */
export const w4axOps = {
  /**
   * Codes I8 [T,K] and scales f32 [T,K/128] of x f32 [T,K], block by block of 128 columns with bits U8 [K/128] (4 or 8) and
   * clip f32 [K/128]: scale = max|x| * (clip / top), top 7 or 127; code = x * (1 / scale) clamped to +-top, rounded to nearest
   * even; a scale below 2^-126 is 0 and its codes are 0. order (optional) I32 [K]: column j reads x's column order[j]. Fails
   * with LPQ_NATIVE_NUMERICS for NaN and infinity.
   */
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

  /** x f32 [T,K] = code * scale; codes I8 [T,K], scales f32 [T,K/128]. */
  dequantizeActivations: (rt: NativeRuntime, q: { codes: Tensor; scales: Tensor }, x: Tensor) =>
    rt.enqueue('dequantize_activations', [q.codes, q.scales], [x]),

  /** y[t][j] = x[t][order[j]]; x, y f32 [T,K], order I32 [K]; y is not x. */
  gatherColumns: (rt: NativeRuntime, x: Tensor, order: Tensor, y: Tensor) =>
    rt.enqueue('gather_columns', [x, order], [y]),

  /**
   * y f32 [T,N] = start + sum: sum runs over blocks b of 128 columns from 0, sum = fma(P, sx[t][b] * sw[n][b], sum), P the
   * exact integer sum of the block's products of codes I8 x [T,K] and w [N,K], as f32 (|P| <= 128 * 127 * 128 < 2^24); start
   * is bias f32 [N] (optional), with `accumulate` y + bias. sx f32 [T,K/128], sw f32 [N,K/128].
   */
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

  /**
   * What gemmComet reads: the codes of quantizeActivations of x f32 (CUDA: f16 and bf16 too) [M,K], those of blocks of 8 bits side
   * by side in x8 I8 [M, 128 e], of 4 bits in x4 U8 [M, 64 f]: byte 16 c + i of a block has column 32 c + i in its low nibble and
   * 32 c + 16 + i in its high one. blocks I32 [K/128]: a block's number among the e of 8 bits, or ~ its number among the f of
   * 4. scales f32 [K/128, M'], M' = M rounded up to fours.
   */
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
   * gemmW4ax of such activations and 4-bit weights U8 [ceil(N/16), K/128, 1024] (layout comet, docs/layouts.md) with scales f32
   * [K/128, N'], N' >= N a multiple of 4: the same sums, y f32, f16 or bf16 [M,N], bias f32 [N]. On CUDA items that blocks share
   * add the sums of runs of blocks of K, and up to 16 tokens 16 warps those of every 16th block, in a fixed order. kernel: few (up to 16
   * tokens, 9.0 alone, chosen there), wgmma (9.0 alone, chosen there) or mma (8.0 and later, chosen before 9.0), else LPQ_NATIVE_ARGUMENT.
   * tokens and shared as gemmAct's, of mma not 32 tokens; cluster and stages are wgmma's; few has none of these.
   */
  gemmComet: (
    rt: NativeRuntime,
    x: { x8: Tensor; x4: Tensor; scales: Tensor; blocks: Tensor },
    w: { codes: Tensor; scales: Tensor },
    bias: Tensor | undefined,
    y: Tensor,
    p: {
      tokens?: 16 | 32 | 64 | 128;
      cluster?: 1 | 2;
      stages?: number;
      shared?: number;
      kernel?: 'few' | 'wgmma' | 'mma';
    } = {},
  ) => rt.enqueue('gemm_comet', [x.x8, x.x4, x.scales, x.blocks, w.codes, w.scales, ...(bias ? [bias] : [])], [y], p),

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
