import type { KvScheme } from '../../formats/kv/scheme.js';
import { allocate, fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { settle } from './native.js';

/** The cache that is examined: lpq's own (src/kv), handed in so that the verifier shares nothing with it. */
export interface CacheUnderTest {
  /** Pages U8 [pages, bytes]: codes of keys, their numbers, codes of values, theirs; or one block for all. */
  readonly tensors: readonly Tensor[];
  sequence(table: readonly number[]): SequenceUnderTest;
  attend(sequences: readonly SequenceUnderTest[], q: Tensor, y: Tensor, p: Queries): void;
  dispose(): void;
}

export interface SequenceUnderTest {
  readonly packed: number;
  readonly tail: number;
  readonly tailKeys: Tensor;
  readonly tailValues: Tensor;
  prefill(k: Tensor, v: Tensor): void;
  step(k: Tensor, v: Tensor, q: Tensor, y: Tensor, p: Queries): void;
  dispose(): void;
}

export interface Queries {
  readonly heads: number;
  readonly scale: number;
}

/** A page of a case. `block`: tokens packed at once, of what the maker says the scheme has. */
export interface PageShape {
  readonly heads: number;
  readonly headDim: number;
  readonly tokens: number;
  readonly order: 'inner' | 'outer';
}

export interface CacheMaker {
  block(scheme: KvScheme): number;
  make(rt: NativeRuntime, scheme: KvScheme, page: PageShape, pages: number): CacheUnderTest;
}

/** A seeded generator (xorshift32) of numbers that f16 holds exactly: m 2^-8, |m| < 2^10, every 17th channel 8 times as large. */
export class Draw {
  #state: number;
  constructor(seed: number) {
    this.#state = (seed ^ 0x9e3779b9) >>> 0 || 1;
  }
  next(): number {
    this.#state ^= this.#state << 13;
    this.#state ^= this.#state >>> 17;
    this.#state ^= this.#state << 5;
    return this.#state >>> 0;
  }
  rows(count: number, width: number): Float32Array<ArrayBuffer> {
    return Float32Array.from({ length: count * width }, (_, i) => {
      const m = (this.next() % 2047) - 1023;
      return (m / 256) * ((i % width) % 17 === 3 ? 8 : 1);
    });
  }
}

/** One side of tokens as numbers: what codes stand for, and codes, scales and zeros themselves. */
export interface Numbers {
  readonly codes: Uint8Array;
  readonly scales: Float64Array;
  readonly zeros: Float64Array;
}

export interface Grid {
  readonly bits: number;
  readonly groupTokens: number;
  readonly groupDims: number;
}

export const gridOf = (scheme: KvScheme, side: 'keys' | 'values'): Grid => {
  const { keys, values } = scheme;
  if (side === 'values') return { bits: values.bits, groupTokens: 1, groupDims: values.group };
  return keys.granularity === 'channel'
    ? { bits: keys.bits, groupTokens: keys.group, groupDims: 1 }
    : { bits: keys.bits, groupTokens: 1, groupDims: keys.group };
};

/** The nearest f16 of a positive number, ties to even; below 2^-14 multiples of 2^-24. */
export function nearestHalf(x: number): number {
  if (x === 0) return 0;
  const unit = 2 ** (Math.max(Math.floor(Math.log2(x)), -14) - 10);
  return nearestEven(x / unit) * unit;
}

function nearestEven(x: number): number {
  const floor = Math.floor(x);
  const rest = x - floor;
  return rest > 0.5 || (rest === 0.5 && floor % 2 !== 0) ? floor + 1 : floor;
}

/** The first `tokens` rows of x [.., width], quantized by the rule of formats/kv/spec.md. */
export function quantizeRows(x: Float32Array, tokens: number, width: number, grid: Grid): Numbers {
  const { bits, groupTokens, groupDims } = grid;
  const columns = width / groupDims;
  const top = 2 ** bits - 1;
  const codes = new Uint8Array(tokens * width);
  const scales = new Float64Array((tokens / groupTokens) * columns);
  const zeros = new Float64Array(scales.length);
  for (let i = 0; i < scales.length; i++) {
    const places: number[] = [];
    for (let t = 0; t < groupTokens; t++)
      for (let c = 0; c < groupDims; c++)
        places.push((Math.floor(i / columns) * groupTokens + t) * width + (i % columns) * groupDims + c);
    const group = places.map((at) => x[at] as number);
    const low = Math.min(...group);
    const scale = nearestHalf(Math.fround((Math.max(...group) - low) / top));
    scales[i] = scale;
    zeros[i] = low;
    for (const [j, at] of places.entries())
      codes[at] =
        scale > 0 ? Math.min(nearestEven(Math.min(Math.fround(((group[j] as number) - low) / scale), top)), top) : 0;
  }
  return { codes, scales, zeros };
}

/** f64 [T, width]: packed numbers, then exact rows. */
export function numbersOf(
  packed: Numbers,
  x: Float32Array,
  tokens: number,
  width: number,
  grid: Grid,
): Float64Array<ArrayBuffer> {
  const { groupTokens, groupDims } = grid;
  const columns = width / groupDims;
  return Float64Array.from({ length: tokens * width }, (_, at) => {
    if (at >= packed.codes.length) return x[at] as number;
    const group = Math.floor(Math.floor(at / width) / groupTokens) * columns + Math.floor((at % width) / groupDims);
    return (packed.codes[at] as number) * (packed.scales[group] as number) + (packed.zeros[group] as number);
  });
}

/** The number that an f16 pattern stands for. */
export function halfValue(bits: number): number {
  const [sign, exponent, fraction] = [bits >> 15 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
  if (exponent === 31) return Number.NaN;
  return exponent === 0 ? sign * fraction * 2 ** -24 : sign * (1024 + fraction) * 2 ** (exponent - 25);
}

/** One side of the pages as the verifier's own decoder reads it. */
export async function decodeSide(
  rt: NativeRuntime,
  tensors: readonly Tensor[],
  scheme: KvScheme,
  page: PageShape & { readonly block: number },
  side: 'keys' | 'values',
  table: readonly number[],
  tokens: number,
): Promise<Numbers> {
  const grid = gridOf(scheme, side);
  const values = side === 'values';
  const width = page.heads * page.headDim;
  const groups = [tokens / grid.groupTokens, width / grid.groupDims];
  const [codes, scales, zeros] = [allocate('u8', [tokens, width]), allocate('f16', groups), allocate('f16', groups)];
  const pages = fromTyped('i32', [table.length], Int32Array.from(table));
  const whole = tensors.length === 1;
  rt.enqueue(
    'verify_kv_decode',
    [tensors[whole ? 0 : values ? 2 : 0] as Tensor, tensors[whole ? 0 : values ? 3 : 1] as Tensor, pages],
    [codes, scales, zeros],
    {
      form: scheme.form,
      outer: page.order === 'outer',
      values,
      channel: grid.groupTokens > 1,
      heads: page.heads,
      headDim: page.headDim,
      pageTokens: page.tokens,
      bits: grid.bits,
      otherBits: values ? scheme.keys.bits : scheme.values.bits,
      group: Math.max(grid.groupTokens, grid.groupDims),
      run: Math.min(128, page.block),
    },
  );
  await settle(rt);
  const found: Numbers = {
    codes: typed<Uint8Array>(codes).slice(),
    scales: Float64Array.from(typed<Uint16Array>(scales), halfValue),
    zeros: Float64Array.from(typed<Uint16Array>(zeros), halfValue),
  };
  for (const tensor of [codes, scales, zeros, pages]) tensor.dispose();
  return found;
}

/** y f64 [heads*headDim] and its bound for arithmetic that rounds to `unit`. */
export async function exactAttention(
  rt: NativeRuntime,
  q: Float32Array<ArrayBuffer>,
  [keys, values]: readonly [Float64Array<ArrayBuffer>, Float64Array<ArrayBuffer>],
  p: Queries & { readonly kvHeads: number; readonly headDim: number; readonly unit: number },
): Promise<{ y: Float64Array; bound: Float64Array }> {
  const width = p.kvHeads * p.headDim;
  const inputs = [
    fromTyped('f32', [q.length], q),
    ...[keys, values].map((rows) => fromTyped('f64', [rows.length / width, width], rows)),
  ];
  const outputs = [0, 1].map(() => allocate('f64', [q.length]));
  rt.enqueue('verify_kv_attention', inputs, outputs, { ...p });
  await settle(rt);
  const [y, bound] = outputs.map((tensor) => typed<Float64Array>(tensor).slice());
  for (const tensor of [...inputs, ...outputs]) tensor.dispose();
  return { y: y as Float64Array, bound: bound as Float64Array };
}
