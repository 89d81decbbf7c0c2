import { type NativeRuntime, readTyped, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { groupSizeOf } from '../core/granularity.js';
import { typeParams } from '../core/quant-type.js';
import { constantZero } from '../quantize/grid.js';
import type { QuantizedModule } from '../quantize/result.js';
import { storedZeros } from '../quantize/stored.js';
import { tuneOps } from './ops.js';
import type { Start } from './options.js';

const TRAINED = ['v', 'f', 'e'] as const;
type Trained = Record<(typeof TRAINED)[number], Tensor>;

/** How far one step goes: of shifts, in distances of grid points; of scales, in shares; of zero points, in whole ones. */
export interface Rates {
  readonly rate: number;
  readonly factorRate: number;
  readonly zeroRate: number;
}

/** A linear in training (native/ops/tune.h): from the codes of `module`, whose scales and zeros are multiplied and shifted. */
export class Latent {
  /** f32 [N,K]: the weight that it stands for, and the gradient with respect to it. */
  readonly weight: Tensor;
  readonly gradient: Tensor;
  private readonly now: Trained;
  private readonly best: Trained;
  private readonly params: { groupSize: number } & ReturnType<typeof typeParams>;

  private constructor(
    private readonly rt: NativeRuntime,
    private readonly module: QuantizedModule,
    private readonly w: Tensor,
    private readonly s: Tensor,
    private readonly z: Tensor,
  ) {
    const [n, k] = module.shape;
    const { type, granularity } = module.scheme;
    this.params = { ...typeParams(type), groupSize: groupSizeOf(granularity, k) };
    const set = (): Trained => ({
      v: rt.allocate('f32', [n, k]),
      f: rt.allocate('f32', s.shape),
      e: rt.allocate('f32', s.shape),
    });
    [this.now, this.best] = [set(), set()];
    this.weight = rt.allocate('f32', [n, k]);
    this.gradient = rt.allocate('f32', [n, k]);
  }

  /** `source`: the unquantized weight [N,K]. */
  static begin(rt: NativeRuntime, source: Tensor, module: QuantizedModule): Latent {
    const { scheme, scales, zeros, shape, globalScale = 1 } = module;
    const w = rt.allocate('f32', shape);
    ops.cast(rt, source, w);
    const count = scales.shape.reduce((a, b) => a * b, 1);
    // Scales as floats: what codes of 1, one a group, stand for.
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
    const latent = new Latent(rt, module, w, s, z);
    latent.restart('least');
    latent.keep();
    return latent;
  }

  /** Takes the weight along with what is trained. */
  refresh(): void {
    const { stored, scale, zero } = this.grid(this.now);
    tuneOps.round(this.rt, { w: this.w, v: this.now.v, scale, zero }, { y: this.weight }, this.params);
    for (const tensor of [stored, scale, zero]) tensor.dispose();
  }

  /** Against the gradient, which is 0 afterwards. */
  step(rates: Rates): void {
    const { rt, w, s, gradient, now, module } = this;
    const { stored, scale, zero } = this.grid(now);
    // Scales of 8 bits and of two levels cannot follow small factors; symmetric grids have one zero.
    const { scaleDtype, twoLevel } = module.scheme;
    const factorRate = scaleDtype.startsWith('f8') || twoLevel ? 0 : rates.factorRate;
    const zeroRate = module.scheme.symmetric ? 0 : rates.zeroRate;
    tuneOps.step(rt, { w, g: gradient, s, scale, zero, ...now }, { ...this.params, ...rates, factorRate, zeroRate });
    ops.zero(rt, gradient);
    for (const tensor of [stored, scale, zero]) tensor.dispose();
  }

  /** What is trained, as it stands, is the best so far. */
  keep(): void {
    for (const name of TRAINED) ops.cast(this.rt, this.now[name], this.best[name]);
  }

  /** The module of the best so far. Its tensors are the caller's. */
  async result(): Promise<Pick<QuantizedModule, 'codes' | 'scales' | 'zeros'>> {
    const { rt, module, w } = this;
    const [n, k] = module.shape;
    const { stored, scale, zero } = this.grid(this.best);
    const bytes = rt.allocate('u8', [n, k]);
    tuneOps.round(rt, { w, v: this.best.v, scale, zero }, { y: this.weight, codes: bytes }, this.params);
    const { bits } = module.scheme.type;
    const codes = rt.allocate('u8', [n, Math.ceil((k * bits) / 8)]);
    ops.packCodes(rt, bytes, codes, { bits });
    const zeros = module.scheme.symmetric
      ? undefined
      : storedZeros(rt, module.scheme, await readTyped<Float32Array>(rt, zero), zero.shape);
    for (const tensor of [bytes, scale, zero]) tensor.dispose();
    return { codes, scales: stored, ...(zeros && { zeros }) };
  }

  dispose(): void {
    const { w, s, z, weight, gradient, now, best } = this;
    for (const tensor of [w, s, z, weight, gradient, ...Object.values(now), ...Object.values(best)]) tensor.dispose();
  }

  /** Back to scales and zeros of the module, with the shifts of a start. */
  restart(start: Start): void {
    const { rt, module, now, w, s, z } = this;
    const [n, k] = module.shape;
    const ones = uploadTyped(rt, 'f32', s.shape, new Float32Array(s.byteLength / 4).fill(1));
    ops.cast(rt, ones, now.f);
    for (const tensor of [now.v, now.e, this.gradient]) ops.zero(rt, tensor);
    const codes = rt.allocate('u8', [n, k]);
    if (start === 'least') {
      ops.unpackCodes(rt, module.codes, codes, { bits: module.scheme.type.bits });
      tuneOps.start(rt, { w, codes, scale: s, zero: z }, now.v, this.params);
    }
    for (const tensor of [ones, codes]) tensor.dispose();
    this.refresh();
  }

  private grid({ f, e }: Trained): { stored: Tensor; scale: Tensor; zero: Tensor } {
    const { rt, s, z, module } = this;
    const out = {
      stored: rt.allocate(module.scheme.scaleDtype, s.shape),
      scale: rt.allocate('f32', s.shape),
      zero: rt.allocate('f32', s.shape),
    };
    const unit = module.globalScale ?? 1;
    tuneOps.grid(rt, { s, f, z, e }, out, { ...typeParams(module.scheme.type), unit });
    return out;
  }
}
