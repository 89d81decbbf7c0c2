import type { NativeRuntime, OpParams, Tensor } from './binding.js';

/**
 * The solver's native operations (native/ops/gptq.h states their contracts). Everything between factor and encode is
 * in solving order: column j of T, U, M and level is input feature order[j].
 */
export const gptqOps = {
  factor: (
    rt: NativeRuntime,
    h: Tensor,
    order: Tensor,
    out: { u: Tensor; m: Tensor; dead: Tensor; info: Tensor },
    damp: number,
  ) => rt.enqueue('gptq_factor', [h, order], [out.u, out.m, out.dead, out.info], { damp }),

  target: (
    rt: NativeRuntime,
    weight: Tensor,
    order: Tensor,
    dead: Tensor,
    correction: (({ drift: Tensor; u: Tensor } | { matrix: Tensor }) & { alpha: number }) | undefined,
    t: Tensor,
    bad: Tensor,
  ) =>
    rt.enqueue(
      'gptq_target',
      [
        weight,
        order,
        dead,
        ...(!correction ? [] : 'matrix' in correction ? [correction.matrix] : [correction.drift, correction.u]),
      ],
      [t, bad],
      { alpha: correction?.alpha ?? 0 },
    ),

  /** B = P D Pᵀ Uᵀ U: GPTAQ's correction of one feed; worth it from K rows on. */
  correction: (rt: NativeRuntime, drift: Tensor, order: Tensor, u: Tensor, matrix: Tensor) =>
    rt.enqueue('gptq_correction', [drift, order, u], [matrix]),

  clip: (rt: NativeRuntime, t: Tensor, m: Tensor, group: Tensor, out: { scale: Tensor; zero: Tensor }, p: OpParams) =>
    rt.enqueue('gptq_clip', [t, m, group], [out.scale, out.zero], p),

  solve: (rt: NativeRuntime, p: SolveInputs, level: Tensor, type: OpParams) =>
    rt.enqueue('gptq_solve', [p.t, p.matrix, p.scale, p.zero, p.group], [level], type),

  descend: (rt: NativeRuntime, p: SolveInputs, level: Tensor, changed: Tensor, params: OpParams) =>
    gptqOps.descendAll(rt, [{ ...p, level }], changed, params),

  /** Problems of one type, which a device solves side by side; the codes that each alone would get. */
  descendAll: (
    rt: NativeRuntime,
    problems: readonly (SolveInputs & { readonly level: Tensor })[],
    changed: Tensor,
    params: OpParams,
  ): void =>
    rt.enqueue(
      'gptq_descend',
      problems.flatMap((p) => [p.t, p.matrix, p.scale, p.zero, p.group]),
      [...problems.map(({ level }) => level), changed],
      params,
    ),

  /** `tm`: T M, computed once for several refits; `params`: of two-level scales. */
  refit: (rt: NativeRuntime, p: SolveInputs, level: Tensor, refitted: Tensor, tm?: Tensor, params?: OpParams) =>
    rt.enqueue('gptq_refit', [p.t, p.matrix, level, p.zero, p.group, ...(tm ? [tm] : [])], [p.scale, refitted], params),

  /** T M for refit, on the CPU; a device computes it during the refit. The caller disposes of it. */
  projected: (rt: NativeRuntime, { t, matrix }: Pick<SolveInputs, 't' | 'matrix'>): Tensor | undefined => {
    if (rt.device !== 'cpu') return undefined;
    const tm = rt.allocate('f32', t.shape);
    rt.enqueue('gemm', [t, matrix], [tm]);
    return tm;
  },

  /** 2:4: T pruned and not rounded, and which weights stay (f32 [N,K], 1 or 0). K % 4 == 0. */
  prune: (rt: NativeRuntime, t: Tensor, u: Tensor, pruned: Tensor, keep: Tensor) =>
    rt.enqueue('gptq_prune', [t, u], [pruned, keep]),

  sparseSolve: (rt: NativeRuntime, p: SolveInputs, out: { level: Tensor; keep: Tensor }, type: OpParams) =>
    rt.enqueue('gptq_sparse_solve', [p.t, p.matrix, p.scale, p.zero, p.group], [out.level, out.keep], type),

  sparseDescend: (
    rt: NativeRuntime,
    p: SolveInputs,
    out: { level: Tensor; keep: Tensor; changed: Tensor },
    params: OpParams,
  ) =>
    rt.enqueue(
      'gptq_sparse_descend',
      [p.t, p.matrix, p.scale, p.zero, p.group],
      [out.level, out.changed, out.keep],
      params,
    ),

  encode: (rt: NativeRuntime, level: Tensor, order: Tensor, codes: Tensor, type: OpParams) =>
    rt.enqueue('gptq_encode', [level, order], [codes], type),

  storeScales: (rt: NativeRuntime, scale: Tensor, stored: Tensor, rounded: Tensor, info: Tensor, unit: number) =>
    rt.enqueue('gptq_store_scales', [scale], [stored, rounded, info], { unit }),
} as const;

/** T [N,K]; matrix [K,K]: U for solve, M otherwise; scale and zero f32 [N,G]; group I32 [K]. */
export interface SolveInputs {
  readonly t: Tensor;
  readonly matrix: Tensor;
  readonly scale: Tensor;
  readonly zero: Tensor;
  readonly group: Tensor;
}
