import type { NativeRuntime, OpParams, Tensor } from '../../native/binding.js';

/** The native operations of trained rounding (native/ops/tune.h states their contracts); `p` has typeParams() of the type. */
export const tuneOps = {
  aim: (
    rt: NativeRuntime,
    t: { p: Tensor; w: Tensor; scale: Tensor; t: Tensor; most: Tensor },
    p: { rate: number; leak: number },
  ) => rt.enqueue('tune_aim', [t.p, t.w, t.scale, t.t, t.most], [t.t, t.most], p),

  grid: (
    rt: NativeRuntime,
    t: { s: Tensor; f: Tensor; z: Tensor; e: Tensor },
    out: { stored: Tensor; scale: Tensor; zero: Tensor },
    p: { unit: number } & OpParams,
  ) => rt.enqueue('tune_grid', [t.s, t.f, t.z, t.e], [out.stored, out.scale, out.zero], p),

  scaleGradient: (rt: NativeRuntime, t: { dw: Tensor; w: Tensor; f: Tensor }, g: Tensor, p: { groupSize: number }) =>
    rt.enqueue('tune_scale_gradient', [t.dw, t.w, t.f, g], [g], p),

  refitGrid: (
    rt: NativeRuntime,
    t: { r: Tensor; m: Tensor; level: Tensor; scale: Tensor; zero: Tensor },
    moved: Tensor,
    p: { groupSize: number; scaleDtype: string; unit: number; zeros: boolean } & OpParams,
  ) => rt.enqueue('tune_refit_grid', [t.r, t.m, t.level, t.scale, t.zero], [t.scale, t.zero, moved], p),

  gainGradient: (rt: NativeRuntime, t: { x: Tensor; dy: Tensor; gain: Tensor }, g: Tensor) =>
    rt.enqueue('tune_gain_gradient', [t.x, t.dy, t.gain, g], [g]),

  adam: (
    rt: NativeRuntime,
    t: { f: Tensor; g: Tensor; m: Tensor; v: Tensor },
    p: { step: number; rate: number; beta1: number; beta2: number; eps: number; least: number; most: number },
  ) => rt.enqueue('tune_adam', [t.f, t.g, t.m, t.v], [t.f, t.g, t.m, t.v], p),

  rowDots: (rt: NativeRuntime, t: { x: Tensor; y: Tensor }, dots: Tensor) =>
    rt.enqueue('tune_row_dots', [t.x, t.y], [dots]),
} as const;
