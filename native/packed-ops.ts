import type { NativeRuntime, OpParams, Tensor } from './binding.js';

/** Products of packed weights, part of the operation table (ops.ts). */
export const packedOps = {
  /**
   * y = x Wᵀ + bias with W[n][k] = (decode(code) - zero) * scale read from the packed format of docs/kernels.md; x [M,K] and
   * y [M,N] f16 or bf16, bias [N] of that dtype; weights U8 [ceil(N/32), ceil(K/128), 512 bits]; scales f16|bf16 and zeros
   * u8|f16 [ceil(N/32), G, 32]. groupLength: 32, 64, 128, or 0 for one scale a row. zero: the constant where there are no
   * zeros. Sums are fp32. Codes are multiplied exactly for up to 64 tokens, and wherever the kernel is not `scaled`: there, on 9.0 and for
   * more tokens, W is rounded to the dtype of x first, as if it were dequantized. warpsN, warpsK, stages and blocks override the choice of tiles, tokens and width the wide and the scaled kernel's,
   * slices and reduce the streaming kernel's cuts;
   * kernel: stream, wide, scaled, hopper, large or portable forces one, LPQ_NATIVE_ARGUMENT where there is none for the type and device. `large`
   * rounds weights like `scaled`; devices before 9.0 take it above 16 tokens (docs/kernels.md). Up to 16
   * tokens on 9.0 the choice is stream, whose launches overlap the product before (docs/kernels.md); overlap: 0 forbids that.
   */
  gemmPacked: (
    rt: NativeRuntime,
    x: Tensor,
    w: { weights: Tensor; scales: Tensor; zeros?: Tensor },
    bias: Tensor | undefined,
    y: Tensor,
    type: OpParams,
    p: {
      groupLength: number;
      zero?: number;
      warpsN?: number;
      warpsK?: number;
      stages?: number;
      blocks?: number;
      tokens?: 16 | 32 | 64 | 128;
      width?: number;
      slices?: number;
      reduce?: 'global' | 'cluster';
      kernel?: 'stream' | 'wide' | 'scaled' | 'hopper' | 'large' | 'portable';
      overlap?: 0 | 1;
    },
  ) =>
    rt.enqueue('gemm_packed', [x, w.weights, w.scales, ...(w.zeros ? [w.zeros] : []), ...(bias ? [bias] : [])], [y], {
      ...type,
      ...p,
      hasZeros: w.zeros !== undefined,
      hasBias: bias !== undefined,
    }),

  /**
   * The same from MARLIN's bytes (docs/layouts.md): weights I32 [K'/16, N' bits / 2], scales F16 [G, N'], zeros I32
   * [G, N' bits / 32] (else the middle code), permutation I32 [K]: the column of x of each row of weights. K' and N' are K and
   * N with padding, G = K' / groupLength, or 1. On CUDA warpsN, warpsK, stages and blocks override the choice of tiles.
   */
  gemmMarlin: (
    rt: NativeRuntime,
    x: Tensor,
    w: { weights: Tensor; scales: Tensor; zeros?: Tensor; permutation?: Tensor },
    bias: Tensor | undefined,
    y: Tensor,
    p: { bits: number; groupLength: number } & StripeParams,
  ) =>
    rt.enqueue(
      'gemm_marlin',
      [
        x,
        w.weights,
        w.scales,
        ...(w.zeros ? [w.zeros] : []),
        ...(w.permutation ? [w.permutation] : []),
        ...(bias ? [bias] : []),
      ],
      [y],
      {
        ...p,
        hasZeros: w.zeros !== undefined,
        hasOrder: w.permutation !== undefined,
        hasBias: bias !== undefined,
      },
    ),

  /**
   * The same from TurboMind's bytes for sm75 to sm90: weights I32 [N' K bits / 32]; scales of 4- and 8-bit integers F16
   * [G, N', 2] = {s, t}, W = code s + t; of f4e2m1 F8_E8M0 or U8 [G, N'], of f8e4m3 F16 or BF16 [G, N']. groupLength 32, 64 or
   * 128, K a multiple of 32. experts: tiles run along K first.
   */
  gemmTurbomind: (
    rt: NativeRuntime,
    x: Tensor,
    w: { weights: Tensor; scales: Tensor },
    bias: Tensor | undefined,
    y: Tensor,
    type: OpParams,
    p: { groupLength: number; experts?: boolean } & StripeParams,
  ) =>
    rt.enqueue('gemm_turbomind', [x, w.weights, w.scales, ...(bias ? [bias] : [])], [y], {
      ...type,
      ...p,
      experts: p.experts === true,
      hasBias: bias !== undefined,
    }),

  /**
   * The same from Sparse-MARLIN's bytes (docs/sparsity.md), W 2:4 sparse along K: weights I32 [K'/32, N' bits / 2], unsigned 4- or
   * 8-bit codes of what stays, zero point 2^(bits-1); metadata I16 [K'/32, 2N'] in ascending order; scales F16 [K'/128, N'], or
   * [1, N'] for one a row (groupLength 0). K' and N' are K and N with padding, multiples of 128 and 64. warpsN, warpsK,
   * stages and blocks override the choice of tiles on CUDA.
   */
  gemmSparseMarlin: (
    rt: NativeRuntime,
    x: Tensor,
    w: { weights: Tensor; metadata: Tensor; scales: Tensor },
    bias: Tensor | undefined,
    y: Tensor,
    p: { bits: number; groupLength: number; warpsN?: number; warpsK?: number; stages?: number; blocks?: number },
  ) =>
    rt.enqueue('gemm_sparse_marlin', [x, w.weights, w.metadata, w.scales, ...(bias ? [bias] : [])], [y], {
      ...p,
      hasBias: bias !== undefined,
    }),

  /**
   * Codes and scales f32 [M] of x f32, f16 or bf16 [M,K], a token at a time: scale = max|x| * f32(1 / top), 0 below 2^-126; code
   * = x * (1 / scale) clamped to +-top, rounded to nearest even; all in fp32. codes I8 [M,K]: top 127; F8_E4M3 [M,K]: top 448.
   * The same bytes on every device. Fails with LPQ_NATIVE_NUMERICS for NaN and infinity.
   */
  quantizeTokens: (rt: NativeRuntime, x: Tensor, out: { codes: Tensor; scales: Tensor }) =>
    rt.enqueue('quantize_tokens', [x], [out.codes, out.scales]),

  /**
   * y = x Wᵀ + bias of codes, y f32, f16 or bf16 [M,N], bias f32 [N]; x.codes I8 or F8_E4M3 [M,K], K a multiple of 16, x.scales
   * f32 [M]. w.codes of x's dtype [N,K] with scales f32 [N], one a row: y = P (sx sw) + bias, P the sum of products. I8: exact,
   * then rounded to fp32 (K below 131072). F8_E4M3: sums of 128 columns are added in fp32; the tensor core has those
   * within 2^-13 of the largest product for each product, the CPU exactly. Or w.codes U8 [ceil(N/16), K/128, 1024], codes of 4
   * bits in the layout comet (docs/layouts.md) with a scale f32 [K/128, N'] a group of 128, N' >= N a multiple of 4: y = s sx +
   * bias, over groups g s = fma(P_g, sw_g, s), P_g exact for x I8 and as above for F8_E4M3. On CUDA, 9.0 alone; items that blocks share add the sums of
   * runs of groups. tokens, stages and shared override the choice of tiles, cluster: 2 has pairs of blocks fetch weights for each other.
   */
  gemmAct: (
    rt: NativeRuntime,
    x: { codes: Tensor; scales: Tensor },
    w: { codes: Tensor; scales: Tensor },
    bias: Tensor | undefined,
    y: Tensor,
    p: { tokens?: 16 | 32 | 64 | 128; cluster?: 1 | 2; stages?: number; shared?: number } = {},
  ) => rt.enqueue('gemm_act', [x.codes, x.scales, w.codes, w.scales, ...(bias ? [bias] : [])], [y], p),
} as const;

interface StripeParams {
  warpsN?: number;
  warpsK?: number;
  stages?: number;
  blocks?: number;
}
