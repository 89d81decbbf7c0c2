import { type NativeRuntime, readTyped, type Tensor, uploadTyped } from '../../native/binding.js';
import { gptqOps, type SolveInputs } from '../../native/gptq-ops.js';
import { multiplied } from '../../native/multiplied.js';
import { ops } from '../../native/ops.js';
import { groupSizeOf } from '../core/granularity.js';
import { typeParams } from '../core/quant-type.js';
import { constantZero } from '../quantize/grid.js';
import type { QuantizedModule } from '../quantize/result.js';
import { storedZeros } from '../quantize/stored.js';
import type { Curvature } from './curvature.js';
import { tuneOps } from './ops.js';

interface Codes {
  /** f32 [N,K]: points of the grid, and f32 [N,G]: what they are multiplied by. */
  readonly level: Tensor;
  readonly scale: Tensor;
  /** f32 [N,G]: what is subtracted from them before. */
  readonly zero: Tensor;
}

/** How far a target goes, and what else is fit to it. */
interface TargetStep {
  readonly rate: number;
  readonly leak: number;
  readonly refit: boolean;
  /** At refits also zero points and scales of 8 bits. */
  readonly grids?: boolean;
}

/**
 * A linear in training: a target f32 [N,K] that moves, and codes that follow it by coordinate descent in the metric of what the linear
 * reads, as GPTQ's last rounds do. Beginning with the codes of `module`.
 */
export class Target {
  /** f32 [N,K]: the weight that the codes stand for, and the gradient with respect to it. */
  readonly weight: Tensor;
  readonly gradient: Tensor;
  private readonly t: Tensor;
  private readonly most: Tensor;
  private readonly group: Tensor;
  private readonly order: Tensor;
  private readonly best: Codes;

  private constructor(
    private readonly rt: NativeRuntime,
    private readonly module: QuantizedModule,
    private readonly curvature: Curvature,
    source: Tensor,
    private readonly now: Codes,
  ) {
    const [n, k] = module.shape;
    const size = groupSizeOf(module.scheme.granularity, k);
    const each = (of: (i: number) => number) =>
      uploadTyped(
        rt,
        'i32',
        [k],
        Int32Array.from({ length: k }, (_, i) => of(i)),
      );
    [this.group, this.order] = [each((i) => Math.floor(i / size)), each((i) => i)];
    const grid = () => rt.allocate('f32', now.scale.shape);
    this.best = { level: rt.allocate('f32', [n, k]), scale: grid(), zero: grid() };
    [this.weight, this.gradient, this.t] = [
      rt.allocate('f32', [n, k]),
      rt.allocate('f32', [n, k]),
      rt.allocate('f32', [n, k]),
    ];
    this.most = rt.allocate('f32', [n]);
    for (const tensor of [this.gradient, this.most]) ops.zero(rt, tensor);
    ops.cast(rt, source, this.t);
    this.keep();
    this.refresh();
  }

  /** `source`: the unquantized weight [N,K]; `curvature`: of what the linear reads. */
  static begin(rt: NativeRuntime, source: Tensor, module: QuantizedModule, curvature: Curvature): Target {
    const { scheme, shape } = module;
    const [n, k] = shape;
    const { s, z } = gridOf(rt, module);
    const codes = rt.allocate('u8', shape);
    const level = rt.allocate('f32', shape);
    const one = uploadTyped(rt, 'f32', [1, 1], new Float32Array([1]));
    ops.unpackCodes(rt, module.codes, codes, { bits: scheme.type.bits });
    ops.dequantize(rt, { codes, scales: one }, level, typeParams(scheme.type), { blockN: n, blockK: k, zero: 0 });
    for (const tensor of [codes, one]) tensor.dispose();
    return new Target(rt, module, curvature, source, { level, scale: s, zero: z });
  }

  /**
   * A step of all: every target goes against its gradient, and the codes of all follow side by side. At refits scales, then grids, are fit
   * to the targets, and codes follow again.
   */
  static step(targets: readonly Target[], { refit, grids = false, ...to }: TargetStep): void {
    for (const target of targets) target.aim(to);
    Target.follow(targets);
    const scales = refit ? targets.filter((target) => target.movesScales) : [];
    for (const target of scales) target.refit();
    Target.follow(scales);
    const moved = refit && grids ? targets.filter((target) => target.movesGrid) : [];
    for (const target of moved) target.refitGrid();
    Target.follow(moved);
    for (const target of targets) target.refresh();
  }

  /** A sweep of coordinate descent over the codes of each. */
  private static follow(targets: readonly Target[]): void {
    const typeOf = ({ module }: Target) => JSON.stringify(module.scheme.type);
    for (const type of new Set(targets.map(typeOf))) {
      const alike = targets.filter((target) => typeOf(target) === type);
      const [{ rt, module }] = alike as [Target];
      const count = rt.allocate('f64', [1]);
      const problems = alike.map(({ problem, now: { level } }) => ({ ...problem, level }));
      gptqOps.descendAll(rt, problems, count, multiplied(rt, { ...typeParams(module.scheme.type), sweeps: 1 }));
      count.dispose();
    }
  }

  /**
   * The target goes against the gradient, which is 0 afterwards, times the inverse of the moments: by `rate` grid points in the root mean
   * square of a row, less where the gradient was larger before. What it is off the weight by shrinks by `leak` first, so that it
   * does not pile up what no code follows.
   */
  private aim(to: { readonly rate: number; readonly leak: number }): void {
    const { rt, gradient, curvature, t, most, now, weight } = this;
    const p = rt.allocate('f32', this.module.shape);
    rt.enqueue('gemm', [gradient, curvature.inverse], [p], multiplied(rt, {}));
    tuneOps.aim(rt, { p, w: weight, scale: now.scale, t, most }, to);
    ops.zero(rt, gradient);
    p.dispose();
  }

  /** The codes and scales, as they stand, are the best so far. */
  keep(): void {
    for (const name of ['level', 'scale', 'zero'] as const) ops.cast(this.rt, this.now[name], this.best[name]);
  }

  /** The codes, scales and zero points of the best so far. Its tensors are the caller's. */
  async result(): Promise<Pick<QuantizedModule, 'codes' | 'scales' | 'zeros'>> {
    const { rt, module, best } = this;
    const { bits } = module.scheme.type;
    const bytes = this.encode(best.level);
    const codes = rt.allocate('u8', [module.shape[0], Math.ceil((module.shape[1] * bits) / 8)]);
    ops.packCodes(rt, bytes, codes, { bits });
    bytes.dispose();
    const kept = (tensor: Tensor) => tensor.view(tensor.shape);
    const scales = module.scheme.twoLevel ? kept(module.scales) : this.stored(best.scale);
    if (!module.zeros) return { codes, scales };
    const zero = await readTyped<Float32Array>(rt, best.zero);
    const zeros = storedZeros(rt, module.scheme, zero, module.zeros.shape) as Tensor;
    return { codes, scales, zeros };
  }

  dispose(): void {
    const { weight, gradient, t, most, group, order, now, best } = this;
    for (const tensor of [weight, gradient, t, most, group, order, ...Object.values(now), ...Object.values(best)])
      tensor.dispose();
  }

  /** Scales of 8 bits and of two levels cannot follow small changes. */
  private get movesScales(): boolean {
    const { scaleDtype, twoLevel } = this.module.scheme;
    return !scaleDtype.startsWith('f8') && !twoLevel;
  }

  /** What is no real number: zero points, and scales of 8 bits. */
  private get movesGrid(): boolean {
    const { scaleDtype, symmetric, twoLevel } = this.module.scheme;
    return (scaleDtype.startsWith('f8') || !symmetric) && !twoLevel;
  }

  private get problem(): SolveInputs {
    const { t, curvature, now, group } = this;
    return { t, matrix: curvature.m, scale: now.scale, zero: now.zero, group };
  }

  /** The scales that fit the codes best, as they are stored. */
  private refit(): void {
    const { rt, now } = this;
    const count = rt.allocate('f64', [1]);
    gptqOps.refit(rt, this.problem, now.level, count);
    count.dispose();
    this.stored(now.scale).dispose();
  }

  /** Zero points, or scales of 8 bits, one further where the codes fit better so. */
  private refitGrid(): void {
    const { rt, module, now, t, curvature } = this;
    const { scaleDtype, symmetric, granularity, type } = module.scheme;
    this.refresh();
    const [error, r] = [rt.allocate('f32', module.shape), rt.allocate('f32', module.shape)];
    ops.add(rt, this.weight, t, error, { scale: -1 });
    rt.enqueue('gemm', [error, curvature.m], [r]);
    const moved = rt.allocate('f64', [1]);
    tuneOps.refitGrid(rt, { r, m: curvature.m, ...now }, moved, {
      ...{ groupSize: groupSizeOf(granularity, module.shape[1]), scaleDtype, unit: module.globalScale ?? 1 },
      ...{ ...typeParams(type), zeros: !symmetric },
    });
    for (const tensor of [error, r, moved]) tensor.dispose();
  }

  /** Scales in their dtype; `scale` becomes what they stand for. */
  private stored(scale: Tensor): Tensor {
    const { rt, module } = this;
    const stored = rt.allocate(module.scheme.scaleDtype, scale.shape);
    const info = rt.allocate('f64', [2]);
    gptqOps.storeScales(rt, scale, stored, scale, info, module.globalScale ?? 1);
    info.dispose();
    return stored;
  }

  private encode(level: Tensor): Tensor {
    const bytes = this.rt.allocate('u8', this.module.shape);
    gptqOps.encode(this.rt, level, this.order, bytes, typeParams(this.module.scheme.type));
    return bytes;
  }

  private refresh(): void {
    const { rt, module, now } = this;
    const { scheme, shape } = module;
    const codes = this.encode(now.level);
    ops.dequantize(
      rt,
      { codes, scales: now.scale, ...(!scheme.symmetric && { zeros: now.zero }) },
      this.weight,
      typeParams(scheme.type),
      { blockN: 1, blockK: groupSizeOf(scheme.granularity, shape[1]), zero: constantZero(scheme) },
    );
    codes.dispose();
  }
}

/** Scales and zero points of a module as floats, f32 [N,G]; the second level of scales is in them. The caller disposes of them. */
function gridOf(rt: NativeRuntime, module: QuantizedModule): { s: Tensor; z: Tensor } {
  const { scheme, scales, zeros, globalScale = 1 } = module;
  const count = scales.shape.reduce((a, b) => a * b, 1);
  // What codes of 1, one a group, stand for.
  const s = rt.allocate('f32', scales.shape);
  const ones = uploadTyped(rt, 'u8', scales.shape, new Uint8Array(count).fill(1));
  const one = { ...typeParams({ kind: 'int', name: 'u8', bits: 8, signed: false }) };
  ops.dequantize(rt, { codes: ones, scales }, s, one, { blockN: 1, blockK: 1, zero: 0, global: globalScale });
  const z = uploadTyped(rt, 'f32', scales.shape, new Float32Array(count).fill(constantZero(scheme)));
  if (zeros) {
    // Likewise: (0 - zero) * -1.
    const none = uploadTyped(rt, 'u8', scales.shape, new Uint8Array(count));
    const minus = uploadTyped(rt, 'f32', scales.shape, new Float32Array(count).fill(-1));
    ops.dequantize(rt, { codes: none, scales: minus, zeros }, z, one, { blockN: 1, blockK: 1 });
    for (const tensor of [none, minus]) tensor.dispose();
  }
  ones.dispose();
  return { s, z };
}
