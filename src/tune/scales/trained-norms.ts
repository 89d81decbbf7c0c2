import { type NativeRuntime, readTyped, type Tensor, uploadTyped } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import type { ModelPlan, NormPlan } from '../../model/plan.js';
import type { WeightSource } from '../../model/source.js';
import { tuneOps } from '../ops.js';
import type { WeightGradient } from '../tape.js';
import { Factors } from './factors.js';

/** A norm whose weight f32 [C] is trained, as factors of what it multiplies by (weight + offset). */
export class TrainedNorm {
  readonly factors: Factors;
  private readonly gain: Tensor;

  private constructor(
    private readonly rt: NativeRuntime,
    /** As in the source, and its values. */
    private readonly stored: Tensor,
    private readonly values: Float32Array,
    private readonly offset: number,
  ) {
    const shape = [values.length];
    this.gain = uploadTyped(
      rt,
      'f32',
      shape,
      values.map((value) => value + offset),
    );
    this.factors = new Factors(rt, shape);
  }

  static async begin(rt: NativeRuntime, source: WeightSource, plan: NormPlan): Promise<TrainedNorm> {
    const host = await source.tensor(plan.weight as string);
    const stored = rt.upload(host);
    const wide = rt.allocate('f32', stored.shape);
    ops.cast(rt, stored, wide);
    const values = (await readTyped<Float32Array>(rt, wide)).slice();
    for (const tensor of [host, wide]) tensor.dispose();
    return new TrainedNorm(rt, stored, values, plan.offset);
  }

  /** The weight now, as it is stored. The caller disposes of it. */
  weight(): Promise<Tensor> {
    return this.made(this.factors.f);
  }

  /** The best weight, as it is stored; undefined: the source's. The caller disposes of it. */
  async result(): Promise<Tensor | undefined> {
    const factors = await readTyped<Float32Array>(this.rt, this.factors.best);
    return factors.every((factor) => factor === 1) ? undefined : this.made(this.factors.best);
  }

  /** Adds to the gradient, of what the norm makes without its weight and the gradient with respect to what it makes. */
  add(x: Tensor, dy: Tensor): void {
    tuneOps.gainGradient(this.rt, { x, dy, gain: this.gain }, this.factors.g);
  }

  dispose(): void {
    for (const each of [this.stored, this.gain, this.factors]) each.dispose();
  }

  /** A factor of 1 keeps the weight to the bit. */
  private async made(f: Tensor): Promise<Tensor> {
    const { rt, stored, values, offset } = this;
    const factors = await readTyped<Float32Array>(rt, f);
    const made = values.map((value, i) => {
      const factor = factors[i] as number;
      return factor === 1 ? value : (value + offset) * factor - offset;
    });
    const wide = uploadTyped(rt, 'f32', stored.shape, made);
    const tensor = rt.allocate(stored.dtype, stored.shape);
    ops.cast(rt, wide, tensor);
    wide.dispose();
    return tensor;
  }
}

/** The norms of a model, by the full name of their weight, that have one for whole rows: those that Tape.norm() gives a gradient of. */
export function normsOf(plan: ModelPlan): Map<string, NormPlan> {
  const found = new Map<string, NormPlan>();
  const visit = (value: unknown): void => {
    if (typeof value !== 'object' || value === null) return;
    const norm = value as Partial<NormPlan>;
    if ((norm.kind === 'rms' || norm.kind === 'layer') && norm.epsilon !== undefined && norm.size !== undefined) {
      if (norm.weight !== undefined && norm.turns === 1 && !norm.split) found.set(norm.weight, norm as NormPlan);
    } else for (const each of Object.values(value)) visit(each);
  };
  visit([plan.blocks, plan.finalNorm]);
  return found;
}

/** Where gradients of norms go (Tape). */
export function normSinks(norms: ReadonlyMap<string, TrainedNorm>): [string, WeightGradient][] {
  return [...norms].map(([name, norm]) => [name, (x: Tensor, dy: Tensor) => norm.add(x, dy)]);
}
