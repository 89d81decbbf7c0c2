import type { NativeRuntime, OpParams, Tensor } from '../../native/binding.js';

type Grouped = { groupSize: number } & OpParams;

/** The native operations of trained rounding (native/ops/tune.h states their contracts); `p` has typeParams() of the type. */
export const tuneOps = {
  aim: (
    rt: NativeRuntime,
    t: { p: Tensor; w: Tensor; scale: Tensor; t: Tensor; most: Tensor },
    p: { rate: number; leak: number },
  ) => rt.enqueue('tune_aim', [t.p, t.w, t.scale, t.t, t.most], [t.t, t.most], p),

  start: (rt: NativeRuntime, t: { w: Tensor; codes: Tensor; scale: Tensor; zero: Tensor }, v: Tensor, p: Grouped) =>
    rt.enqueue('tune_start', [t.w, t.codes, t.scale, t.zero], [v], p),

  grid: (
    rt: NativeRuntime,
    t: { s: Tensor; f: Tensor; z: Tensor; e: Tensor },
    out: { stored: Tensor; scale: Tensor; zero: Tensor },
    p: { unit: number } & OpParams,
  ) => rt.enqueue('tune_grid', [t.s, t.f, t.z, t.e], [out.stored, out.scale, out.zero], p),

  round: (
    rt: NativeRuntime,
    t: { w: Tensor; v: Tensor; scale: Tensor; zero: Tensor },
    out: { y: Tensor; codes?: Tensor },
    p: Grouped,
  ) =>
    rt.enqueue('tune_round', [t.w, t.v, t.scale, t.zero], [out.y, ...(out.codes ? [out.codes] : [])], {
      ...p,
      codes: out.codes !== undefined,
    }),

  step: (
    rt: NativeRuntime,
    t: { w: Tensor; g: Tensor; s: Tensor; scale: Tensor; zero: Tensor; v: Tensor; f: Tensor; e: Tensor },
    p: { rate: number; factorRate: number; zeroRate: number } & Grouped,
  ) => rt.enqueue('tune_step', [t.w, t.g, t.s, t.scale, t.zero, t.v, t.f, t.e], [t.v, t.f, t.e], p),

  scaleGradient: (rt: NativeRuntime, t: { dw: Tensor; w: Tensor; f: Tensor }, g: Tensor, p: { groupSize: number }) =>
    rt.enqueue('tune_scale_gradient', [t.dw, t.w, t.f, g], [g], p),

  adam: (
    rt: NativeRuntime,
    t: { f: Tensor; g: Tensor; m: Tensor; v: Tensor },
    p: { step: number; rate: number; beta1: number; beta2: number; eps: number; least: number; most: number },
  ) => rt.enqueue('tune_adam', [t.f, t.g, t.m, t.v], [t.f, t.g, t.m, t.v], p),
} as const;
