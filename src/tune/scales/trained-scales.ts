import type { NativeRuntime, Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { groupSizeOf } from '../../core/granularity.js';
import { typeParams } from '../../core/quant-type.js';
import type { QuantizedModule } from '../../quantize/result.js';
import { dequantizeResult } from '../../quantize/stored.js';
import { tuneOps } from '../ops.js';
import { Factors, type TrainingStep } from './factors.js';

/** A module whose scales are trained, as factors f32 [N,G] of those that it has; its codes and zero points are fixed. */
export class TrainedScales {
  readonly factors: Factors;
  private readonly none: Tensor;
  private readonly groupSize: number;

  private constructor(
    private readonly rt: NativeRuntime,
    private readonly module: QuantizedModule,
    private readonly scales: Tensor,
  ) {
    const [, k] = module.shape;
    this.groupSize = groupSizeOf(module.scheme.granularity, k);
    this.factors = new Factors(rt, scales.shape);
    this.none = rt.allocate('f32', scales.shape);
    ops.zero(rt, this.none);
  }

  /** The module's tensors stay the caller's. */
  static begin(rt: NativeRuntime, module: QuantizedModule): TrainedScales {
    const scales = rt.allocate('f32', module.scales.shape);
    ops.cast(rt, module.scales, scales);
    return new TrainedScales(rt, module, scales);
  }

  /** The weight f32 [N,K] as it is stored now. The caller disposes of it. */
  weight(): Tensor {
    const stored = this.stored(this.factors.f);
    const made = dequantizeResult(this.rt, { ...this.module, scales: stored });
    stored.dispose();
    return made;
  }

  /** Adds to the gradient, of what a linear with this `weight` has read and the gradient with respect to what it made. */
  add(weight: Tensor, x: Tensor, dy: Tensor): void {
    const dw = this.rt.allocate('f32', this.module.shape);
    ops.linearWeightGradient(this.rt, x, dy, dw);
    const { f, g } = this.factors;
    tuneOps.scaleGradient(this.rt, { dw, w: weight, f }, g, { groupSize: this.groupSize });
    dw.dispose();
  }

  /** Against the gradient, which is 0 afterwards; `rate`: how far the outermost points of a grid go, in distances of its points. */
  step(p: TrainingStep): void {
    this.factors.step({ ...p, rate: p.rate / 2 ** (this.module.scheme.type.bits - 1) });
  }

  /** The best scales as they are stored. The caller disposes of them. */
  result(): Tensor {
    return this.stored(this.factors.best);
  }

  dispose(): void {
    for (const each of [this.scales, this.none, this.factors]) each.dispose();
  }

  private stored(f: Tensor): Tensor {
    const { rt, scales: s, none, module } = this;
    const stored = rt.allocate(module.scheme.scaleDtype, s.shape);
    const [scale, zero] = [rt.allocate('f32', s.shape), rt.allocate('f32', s.shape)];
    tuneOps.grid(
      rt,
      { s, f, z: none, e: none },
      { stored, scale, zero },
      { ...typeParams(module.scheme.type), unit: 1 },
    );
    for (const tensor of [scale, zero]) tensor.dispose();
    return stored;
  }
}

/** Whether a module's scales can follow small factors: those of 8 bits (MX, NVFP4) and of two levels cannot. */
export function hasTrainedScales({ scheme }: Pick<QuantizedModule, 'scheme'>): boolean {
  return !scheme.scaleDtype.startsWith('f8') && !scheme.twoLevel;
}
