import type { NativeRuntime, OpParams, Tensor } from './binding.js';
import type { TokenCodes } from './token-codes.js';

/** Groups and zero points of packed weights, and how a kernel cuts their product. */
interface PackedCut {
  groupSize: number;
  zero?: number;
  warpsN?: number;
  warpsK?: number;
  stages?: number;
  blocks?: number;
  tokens?: 16 | 32 | 64 | 128;
}

/** What gate and up of experts become (native/ops/gemm_experts.h). */
export type ExpertGating = {
  gate?: 'silu' | 'gelu' | 'gelu_tanh' | 'relu' | 'relu2' | 'quick_gelu' | 'sigmoid' | 'clamped';
  alpha?: number;
  limit?: number;
};

/** Products of packed weights, part of the operation table (ops.ts). */
export const packedOps = {
  /**
   * y = x Wᵀ + bias of the packed format of docs/internals/layouts/tilus.md (native/ops/gemm_packed.h). `kernel` names the family of CUDA kernels that
   * runs; the other settings are of its cut.
   */
  gemmPacked: (
    rt: NativeRuntime,
    x: Tensor,
    w: { weights: Tensor; scales: Tensor; zeros?: Tensor },
    bias: Tensor | undefined,
    y: Tensor,
    type: OpParams,
    p: PackedCut & {
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
   * y[m] = x[m] Wᵀ + bias of the expert whose rows `offsets` I32 [E+1] says are there; weights, scales and zero points of all experts of one
   * form, [E, ...], bias [E,N] (native/ops/gemm_experts.h). `gate`: y is gated, the weights' rows are interleaved. `tokens`: rows of a tile; `width`: packed blocks of a strip of the wide kernel.
   */
  gemmExperts: (
    rt: NativeRuntime,
    x: Tensor,
    offsets: Tensor,
    w: { weights: Tensor; scales: Tensor; zeros?: Tensor },
    bias: Tensor | undefined,
    y: Tensor,
    type: OpParams,
    p: PackedCut & {
      width?: 4 | 8 | 16;
      kernel?: 'scaled' | 'wide' | 'hopper' | 'portable';
    } & ExpertGating,
  ) =>
    rt.enqueue(
      'gemm_experts',
      [x, offsets, w.weights, w.scales, ...(w.zeros ? [w.zeros] : []), ...(bias ? [bias] : [])],
      [y],
      { ...type, ...p, hasZeros: w.zeros !== undefined, hasBias: bias !== undefined },
    ),

  /** What gemmExperts multiplies with `gate`, of tensors with the blocks of a gate above those of up (native/ops/interleave_gates.h). */
  interleaveGates: (
    rt: NativeRuntime,
    x: Tensor,
    y: Tensor,
    p: { of: 'words'; bits: number } | { of: 'sides' } | { of: 'rows' },
  ) => rt.enqueue('interleave_gates', [x], [y], p),

  /** gemmPacked from MARLIN's bytes (native/ops/gemm_marlin.h). */
  gemmMarlin: (
    rt: NativeRuntime,
    x: Tensor,
    w: { weights: Tensor; scales: Tensor; zeros?: Tensor; permutation?: Tensor },
    bias: Tensor | undefined,
    y: Tensor,
    p: { bits: number; groupSize: number } & StripeParams,
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

  /** The same from TurboMind's bytes for sm75 to sm90 (native/ops/gemm_turbomind.h). */
  gemmTurbomind: (
    rt: NativeRuntime,
    x: Tensor,
    w: { weights: Tensor; scales: Tensor },
    bias: Tensor | undefined,
    y: Tensor,
    type: OpParams,
    p: { groupSize: number; experts?: boolean } & StripeParams,
  ) =>
    rt.enqueue('gemm_turbomind', [x, w.weights, w.scales, ...(bias ? [bias] : [])], [y], {
      ...type,
      ...p,
      experts: p.experts === true,
      hasBias: bias !== undefined,
    }),

  /** The same from Sparse-MARLIN's bytes (native/ops/gemm_sparse_marlin.h). */
  gemmSparseMarlin: (
    rt: NativeRuntime,
    x: Tensor,
    w: { weights: Tensor; metadata: Tensor; scales: Tensor },
    bias: Tensor | undefined,
    y: Tensor,
    p: { bits: number; groupSize: number; warpsN?: number; warpsK?: number; stages?: number; blocks?: number },
  ) =>
    rt.enqueue('gemm_sparse_marlin', [x, w.weights, w.metadata, w.scales, ...(bias ? [bias] : [])], [y], {
      ...p,
      hasBias: bias !== undefined,
    }),

  /** Codes of 8 bits with one scale a token (native/ops/w4ax.h). */
  quantizeTokens: (rt: NativeRuntime, x: Tensor, out: TokenCodes) =>
    rt.enqueue('quantize_tokens', [x], [out.codes, out.scales]),

  /** The numbers of such codes but for a factor a token, exactly: x = code 2^e, rest = scale 2^-e (native/ops/w4ax.h). */
  widenTokens: (rt: NativeRuntime, from: TokenCodes, x: Tensor, rest: Tensor) =>
    rt.enqueue('widen_tokens', [from.codes, from.scales], [x, rest]),

  /** y = y rest + bias, a factor a token. */
  scaleTokens: (rt: NativeRuntime, rest: Tensor, bias: Tensor | undefined, y: Tensor) =>
    rt.enqueue('scale_tokens', [rest, ...(bias ? [bias] : [])], [y]),

  /** y = x Wᵀ + bias of codes of 8 bits by codes of 8 or 4; `groups`: whole factors of groups (native/ops/gemm_act.h). */
  gemmAct: (
    rt: NativeRuntime,
    x: { codes: Tensor; scales: Tensor },
    w: { codes: Tensor; scales: Tensor; groups?: Tensor | undefined },
    bias: Tensor | undefined,
    y: Tensor,
    p: {
      kernel?: 'act8';
      tokens?: number;
      width?: number;
      blocks?: number;
      stages?: number;
      reduce?: 'global' | 'cluster';
      overlap?: 0 | 1;
    } = {},
  ) =>
    rt.enqueue(
      'gemm_act',
      [x.codes, x.scales, w.codes, w.scales, ...(w.groups ? [w.groups] : []), ...(bias ? [bias] : [])],
      [y],
      { ...p, ...(w.groups ? { groupScales: 1 } : {}) },
    ),
} as const;

interface StripeParams {
  warpsN?: number;
  warpsK?: number;
  stages?: number;
  blocks?: number;
}
