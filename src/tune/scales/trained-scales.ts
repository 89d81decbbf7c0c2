import { type NativeRuntime, type Tensor, uploadTyped } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { groupSizeOf } from '../../core/granularity.js';
import { typeParams } from '../../core/quant-type.js';
import type { QuantizedModule } from '../../quantize/result.js';
import { dequantizeResult } from '../../quantize/stored.js';
import { tuneOps } from '../ops.js';
import { EPSILON, FACTORS, type TrainingStep } from './adam.js';

/** What a state of the steps is made of. */
const KEPT = ['f', 'm', 'v', 'best'] as const;

/** A module whose scales are trained, as factors f32 [N,G] of those that it has; its codes and zero points are fixed. */
export class TrainedScales {
  private readonly state: Record<'f' | 'g' | 'm' | 'v' | 'best', Tensor>;
  private readonly none: Tensor;
  private readonly groupSize: number;

  private constructor(
    private readonly rt: NativeRuntime,
    private readonly module: QuantizedModule,
    private readonly scales: Tensor,
  ) {
    const [, k] = module.shape;
    this.groupSize = groupSizeOf(module.scheme.granularity, k);
    const make = () => rt.allocate('f32', scales.shape);
    this.state = { f: make(), g: make(), m: make(), v: make(), best: make() };
    this.none = make();
    const { f, g, m, v, best } = this.state;
    const ones = uploadTyped(rt, 'f32', scales.shape, new Float32Array(scales.byteLength / 4).fill(1));
    for (const tensor of [f, best]) ops.cast(rt, ones, tensor);
    for (const tensor of [g, m, v, this.none]) ops.zero(rt, tensor);
    ones.dispose();
  }

  /** The module's tensors stay the caller's. */
  static begin(rt: NativeRuntime, module: QuantizedModule): TrainedScales {
    const scales = rt.allocate('f32', module.scales.shape);
    ops.cast(rt, module.scales, scales);
    return new TrainedScales(rt, module, scales);
  }

  /** The weight f32 [N,K] as it is stored now. The caller disposes of it. */
  weight(): Tensor {
    const stored = this.stored(this.state.f);
    const made = dequantizeResult(this.rt, { ...this.module, scales: stored });
    stored.dispose();
    return made;
  }

  /** Adds to the gradient, of what a linear with this `weight` has read and the gradient with respect to what it made. */
  add(weight: Tensor, x: Tensor, dy: Tensor): void {
    const dw = this.rt.allocate('f32', this.module.shape);
    ops.linearWeightGradient(this.rt, x, dy, dw);
    const { f, g } = this.state;
    tuneOps.scaleGradient(this.rt, { dw, w: weight, f }, g, { groupSize: this.groupSize });
    dw.dispose();
  }

  /** Against the gradient, which is 0 afterwards; `rate`: how far the outermost points of a grid go, in distances of its points. */
  step(p: TrainingStep): void {
    const { f, g, m, v } = this.state;
    const rate = p.rate / 2 ** (this.module.scheme.type.bits - 1);
    tuneOps.adam(this.rt, { f, g, m, v }, { ...p, rate, eps: EPSILON, ...FACTORS });
  }

  /** The factors are the best so far. */
  keep(): void {
    ops.cast(this.rt, this.state.f, this.state.best);
  }

  /** The best scales as they are stored. The caller disposes of them. */
  result(): Tensor {
    return this.stored(this.state.best);
  }

  /** What steps go on from, by names of this module. */
  saved(name: string): [string, Tensor][] {
    return KEPT.map((each) => [`${name}.${each}`, this.state[each]]);
  }

  /** Goes on from what saved() gave. */
  restore(name: string, tensor: (name: string) => Tensor): void {
    for (const each of KEPT) {
      const from = tensor(`${name}.${each}`);
      const here = this.rt.upload(from);
      ops.cast(this.rt, here, this.state[each]);
      for (const one of [here, from]) one.dispose();
    }
  }

  /** The gradient f32 [N,G] with respect to the factors, so far. */
  get gradient(): Tensor {
    return this.state.g;
  }

  dispose(): void {
    for (const tensor of [this.scales, this.none, ...Object.values(this.state)]) tensor.dispose();
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
