import { type NativeRuntime, type Tensor, uploadTyped } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { tuneOps } from '../ops.js';

/** One step of Adam: of all steps the how manyth, and how far it goes. */
export interface TrainingStep {
  readonly step: number;
  readonly rate: number;
  readonly beta1: number;
  readonly beta2: number;
}

/** Far below any gradient that matters, which are of a mean over tokens. */
const EPSILON = 1e-12;
/** How far a factor can go. */
const RANGE = { least: 0.25, most: 4 } as const;
/** What steps go on from. */
const KEPT = ['f', 'm', 'v', 'best'] as const;

/** Factors f32 of a shape that Adam trains, 1 in the beginning: f now, their gradient g, its moments m and v, and the best so far. */
export class Factors {
  readonly f: Tensor;
  readonly g: Tensor;
  readonly best: Tensor;
  private readonly m: Tensor;
  private readonly v: Tensor;

  constructor(
    private readonly rt: NativeRuntime,
    shape: readonly number[],
  ) {
    const count = shape.reduce((product, size) => product * size, 1);
    const make = (value: number) => uploadTyped(rt, 'f32', shape, new Float32Array(count).fill(value));
    this.f = make(1);
    this.g = make(0);
    this.m = make(0);
    this.v = make(0);
    this.best = make(1);
  }

  /** Against the gradient, which is 0 afterwards; `rate`: how far a factor goes at most. */
  step({ step, rate, beta1, beta2 }: TrainingStep): void {
    const { f, g, m, v } = this;
    tuneOps.adam(this.rt, { f, g, m, v }, { step, rate, beta1, beta2, eps: EPSILON, ...RANGE });
  }

  /** The factors are the best so far. */
  keep(): void {
    ops.cast(this.rt, this.f, this.best);
  }

  /** What steps go on from, by names under `name`. */
  saved(name: string): [string, Tensor][] {
    return KEPT.map((each) => [`${name}.${each}`, this[each]]);
  }

  /** Goes on from what saved() gave. */
  restore(name: string, tensor: (name: string) => Tensor): void {
    for (const each of KEPT) {
      const from = tensor(`${name}.${each}`);
      const here = this.rt.upload(from);
      ops.cast(this.rt, here, this[each]);
      for (const one of [here, from]) one.dispose();
    }
  }

  dispose(): void {
    for (const tensor of [this.f, this.g, this.m, this.v, this.best]) tensor.dispose();
  }
}
