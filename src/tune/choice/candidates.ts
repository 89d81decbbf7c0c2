import { type NativeRuntime, readTyped, type Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import type { BlockWeights, LinearRef } from '../../model/program.js';
import { disposeModule, type QuantizedModule } from '../../quantize/result.js';
import { roundWeight } from '../../quantize/round.js';
import { checkGroupSize, checkSparsity, type QuantScheme } from '../../quantize/scheme.js';
import { dequantizeResult } from '../../quantize/stored.js';
import { tuneOps } from '../ops.js';
import type { WeightGradient } from '../tape.js';

/** A linear, rounded to each scheme, and what was seen of it: f64 [T] by scheme and pass. */
interface Candidate {
  readonly weight: Tensor;
  readonly rounded: readonly QuantizedModule[];
  readonly dots: { readonly scheme: number; readonly batch: number; readonly values: Tensor }[];
}

/** Linears of a block that are rounded to several schemes, to see what each does to the loss on the way back. */
export class Candidates {
  private constructor(
    private readonly rt: NativeRuntime,
    private readonly linears: ReadonlyMap<string, Candidate>,
  ) {}

  /** `weights`: unquantized, the caller's, which this reads until it is disposed of. Throws what roundWeight() does. */
  static async of(
    rt: NativeRuntime,
    weights: BlockWeights,
    linears: readonly LinearRef[],
    schemes: readonly QuantScheme[],
  ): Promise<Candidates> {
    const made = new Map<string, Candidate>();
    const all = new Candidates(rt, made);
    for (const { name, k } of linears) {
      const weight = weights.get(`${name}.weight`) as Tensor;
      const rounded: QuantizedModule[] = [];
      made.set(name, { weight, rounded, dots: [] });
      for (const scheme of schemes) {
        checkGroupSize(scheme, name, k);
        checkSparsity(scheme, name, k);
        rounded.push(await roundWeight(rt, weight, scheme, name));
      }
    }
    return all;
  }

  /** Of a backward pass of the mean loss over so many tokens: where gradients of linears go (Tape). */
  sinks(tokens: number): Map<string, WeightGradient> {
    return new Map(
      [...this.linears].map(([name, linear]) => [name, (x: Tensor, dy: Tensor) => this.see(linear, x, dy, tokens)]),
    );
  }

  private see({ weight, rounded, dots }: Candidate, x: Tensor, dy: Tensor, tokens: number): void {
    const { rt } = this;
    const rows = x.shape[0] as number;
    if (rows === 0) return;
    const [change, wide] = [rt.allocate('f32', dy.shape), rt.allocate('f32', weight.shape)];
    ops.cast(rt, weight, wide);
    for (const [scheme, module] of rounded.entries()) {
      const error = dequantizeResult(rt, module);
      ops.add(rt, error, wide, error, { scale: -1 });
      ops.linear(rt, x, error, undefined, change);
      const values = rt.allocate('f64', [rows]);
      tuneOps.rowDots(rt, { x: change, y: dy }, values);
      dots.push({ scheme, batch: tokens, values });
      error.dispose();
    }
    for (const tensor of [change, wide]) tensor.dispose();
  }

  /** Sums over all passes of what the squared first-order changes of the summed loss are, token by token; by linear and scheme. */
  async sums(): Promise<Map<string, number[]>> {
    const found = new Map<string, number[]>();
    for (const [name, { rounded, dots }] of this.linears) {
      const sums = rounded.map(() => 0);
      for (const { scheme, batch, values } of dots) {
        const seen = await readTyped<Float64Array>(this.rt, values);
        sums[scheme] = seen.reduce((sum, value) => sum + (value * batch) ** 2, sums[scheme] as number);
      }
      found.set(name, sums);
    }
    return found;
  }

  dispose(): void {
    for (const { rounded, dots } of this.linears.values()) {
      rounded.forEach(disposeModule);
      for (const { values } of dots) values.dispose();
    }
  }
}
