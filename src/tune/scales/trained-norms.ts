import { type NativeRuntime, readTyped, type Tensor, uploadTyped } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import type { ModelPlan, NormPlan } from '../../model/plan.js';
import type { WeightSource } from '../../model/source.js';
import { tuneOps } from '../ops.js';
import type { WeightGradient } from '../tape.js';
import { EPSILON, FACTORS, type TrainingStep } from './adam.js';

/** What a state of the steps is made of. */
const KEPT = ['f', 'm', 'v', 'best'] as const;

/** A norm whose weight f32 [C] is trained, as factors of what it multiplies by (weight + offset). */
export class TrainedNorm {
  private readonly state: Record<'f' | 'g' | 'm' | 'v' | 'best', Tensor>;
  private readonly gain: Tensor;

  private constructor(
    private readonly rt: NativeRuntime,
    /** As in the source, and its values. */
    private readonly stored: Tensor,
    private readonly values: Float32Array,
    private readonly offset: number,
  ) {
    const shape = [values.length];
    const make = (value: number) => uploadTyped(rt, 'f32', shape, new Float32Array(values.length).fill(value));
    this.gain = uploadTyped(
      rt,
      'f32',
      shape,
      values.map((value) => value + offset),
    );
    this.state = { f: make(1), g: make(0), m: make(0), v: make(0), best: make(1) };
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
    return this.made(this.state.f);
  }

  /** The best weight, as it is stored; undefined: the source's. The caller disposes of it. */
  async result(): Promise<Tensor | undefined> {
    const factors = await readTyped<Float32Array>(this.rt, this.state.best);
    return factors.every((factor) => factor === 1) ? undefined : this.made(this.state.best);
  }

  /** Adds to the gradient, of what the norm makes without its weight and the gradient with respect to what it makes. */
  add(x: Tensor, dy: Tensor): void {
    tuneOps.gainGradient(this.rt, { x, dy, gain: this.gain }, this.state.g);
  }

  /** Against the gradient, which is 0 afterwards; `rate`: how far a factor goes at most. */
  step({ step, rate, beta1, beta2 }: TrainingStep): void {
    const { f, g, m, v } = this.state;
    tuneOps.adam(this.rt, { f, g, m, v }, { step, rate, beta1, beta2, eps: EPSILON, ...FACTORS });
  }

  keep(): void {
    ops.cast(this.rt, this.state.f, this.state.best);
  }

  saved(name: string): [string, Tensor][] {
    return KEPT.map((each) => [`${name}.${each}`, this.state[each]]);
  }

  restore(name: string, tensor: (name: string) => Tensor): void {
    for (const each of KEPT) {
      const from = tensor(`${name}.${each}`);
      const here = this.rt.upload(from);
      ops.cast(this.rt, here, this.state[each]);
      for (const one of [here, from]) one.dispose();
    }
  }

  /** The gradient f32 [C] with respect to the factors, so far. */
  get gradient(): Tensor {
    return this.state.g;
  }

  dispose(): void {
    for (const tensor of [this.stored, this.gain, ...Object.values(this.state)]) tensor.dispose();
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
