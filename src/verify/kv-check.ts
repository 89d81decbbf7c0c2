import type { KvScheme } from '../../formats/kv/scheme.js';
import { type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { halfValue } from './floats.js';
import { exactAttention, floatsOf, type OutputType, poisoned, UNIT } from './kv-attention.js';
import {
  asStored,
  type CacheMaker,
  type CacheUnderTest,
  type PageShape,
  type Queries,
  type SequenceUnderTest,
  storedDims,
} from './kv-case.js';
import { decodeSide, gridOf, type Numbers, quantizeRows, type Rows, rowsOf } from './kv-numbers.js';
import { settle } from './native.js';
import type { Recorder } from './report.js';

/** A cache of one shape, and who looks at it. */
export interface Case {
  /** Of the CPU: the verifier's own work. */
  readonly runtime: NativeRuntime;
  /** Where the cache lies. */
  readonly device: NativeRuntime;
  readonly recorder: Recorder;
  readonly maker: CacheMaker;
  readonly seed: number;
  readonly scheme: KvScheme;
  readonly page: PageShape & { readonly block: number };
  readonly queries: Queries;
  readonly name: string;
}

/** Tokens [T, heads*headDim] as they come. */
export interface Tokens {
  readonly k: Float32Array<ArrayBuffer>;
  readonly v: Float32Array<ArrayBuffer>;
}

export interface Sequence {
  readonly cache: CacheUnderTest;
  readonly sequence: SequenceUnderTest;
  readonly table: readonly number[];
}

export const widthOf = ({ page }: Case): number => page.heads * page.headDim;
/** Of a token in pages. */
export const storedWidthOf = ({ page }: Case): number => page.heads * storedDims(page);
export const batchOf = ({ scheme, page }: Case): number => Math.max(scheme.residual, page.block);

/** What a sequence holds, read by the verifier, compared with what it should; returns keys and values as numbers. */
export async function checkStored(
  one: Case,
  { cache, sequence, table }: Sequence,
  tokens: Tokens,
  length: number,
  where: string,
): Promise<[Rows, Rows]> {
  const { runtime, device, recorder, scheme, page, name } = one;
  const [own, width] = [widthOf(one), storedWidthOf(one)];
  const batch = batchOf(one);
  const packed = length - (length % batch);
  await settle(device);
  const fail = (what: string, got: number, expected: number, at: number): void => {
    recorder.check(false, {
      check: 'kv',
      row: Math.floor(at / width),
      column: at % width,
      got,
      expected,
      message: `${name}, ${where}: ${what} (token ${Math.floor(at / width)}, dim ${at % width}) is ${got} and should be ${expected}`,
    });
  };
  recorder.check(sequence.packed === packed && sequence.tail === length - packed, {
    check: 'kv',
    got: `${sequence.packed} packed, ${sequence.tail} exact`,
    expected: `${packed} packed, ${length - packed} exact`,
    message: `${name}, ${where}: the split of the tokens is wrong`,
  });
  const pages = await downloaded(device, cache.tensors);
  const tails = await downloaded(device, [sequence.tailKeys, sequence.tailValues]);
  const sides: Rows[] = [];
  for (const [i, side] of (['keys', 'values'] as const).entries()) {
    const given = side === 'keys' ? tokens.k : tokens.v;
    const x = asStored(given, page);
    const grid = gridOf(scheme, side);
    const expected = quantizeRows(x, packed, width, grid);
    const found = await decodeSide(runtime, pages, scheme, page, side, table, packed);
    for (const part of ['codes', 'scales', 'zeros'] as const) {
      const [got, want] = [found[part], expected[part]] as [Numbers['scales'], Numbers['scales']];
      const at = want.findIndex((value, n) => got[n] !== value);
      if (at >= 0)
        fail(`${part} of ${side}, element ${at},`, got[at] as number, want[at] as number, part === 'codes' ? at : 0);
      else recorder.count('kv');
    }
    const tail = typed<Uint16Array>(tails[i] as Tensor);
    const rest = given.subarray(packed * own, length * own);
    const wrong = rest.findIndex((value, n) => halfValue(tail[n] as number) !== value);
    if (wrong >= 0)
      fail(
        `the tail of ${side}`,
        halfValue(tail[wrong] as number),
        rest[wrong] as number,
        packed * width + Math.floor(wrong / own) * width,
      );
    else recorder.count('kv');
    sides.push(rowsOf(expected, x, length, width, grid));
  }
  for (const tensor of [...pages, ...tails]) tensor.dispose();
  return sides as [Rows, Rows];
}

/** Copies, or views, on the CPU. */
export async function downloaded(device: NativeRuntime, tensors: readonly Tensor[]): Promise<Tensor[]> {
  const copies: Tensor[] = [];
  for (const tensor of tensors) copies.push(await device.download(tensor));
  return copies;
}

/** What attention gives, in every type that the cache has; reply(dtype) enqueues it. */
export const outputTypes = ({ maker }: Case): readonly OutputType[] =>
  maker.arithmetic === 'fp' ? ['f32', 'f64'] : ['f16', 'f32'];

/** Compares row `row` of y, of a query over rows, with fp64. */
export async function checkAttention(
  one: Case,
  q: Float32Array<ArrayBuffer>,
  held: readonly [Rows, Rows],
  got: Float64Array,
  type: OutputType,
  where: string,
): Promise<void> {
  const { runtime, recorder, page, queries, name, maker, scheme } = one;
  const top = maker.arithmetic === 'fp' ? 0 : 2 ** Math.max(scheme.keys.bits, scheme.values.bits) - 1;
  const dims = storedDims(page);
  const shape = { kvHeads: page.heads, headDim: dims };
  const all = await exactAttention(runtime, asStored(q, page), held, { ...queries, ...shape, unit: UNIT[type], top });
  const own = (values: Float64Array): Float64Array => values.filter((_, i) => i % dims < page.headDim);
  const exact = { y: own(all.y), bound: own(all.bound) };
  const at = exact.y.findIndex(
    (value, i) => !(Math.abs((got[i] as number) - value) <= (exact.bound[i] as number)) || exact.bound[i] === Infinity,
  );
  recorder.check(at < 0 && got.length === exact.y.length, {
    check: 'kv',
    column: at,
    got: got[at] as number,
    expected: exact.y[at] as number,
    message: `${name}, ${where}: output ${at} of attention (${type}) is ${got[at]}, not ${exact.y[at]} within ${exact.bound[at]}`,
  });
}

/** Outputs [sequences, heads*headDim] of attention, poisoned before. */
export async function attended(
  { device, queries }: Case,
  cache: CacheUnderTest,
  sequences: readonly SequenceUnderTest[],
  q: Tensor,
  type: OutputType,
): Promise<Float64Array> {
  const y = poisoned(device, type, q.shape);
  cache.attend(sequences, q, y, queries);
  const values = await floatsOf(device, y);
  y.dispose();
  return values;
}
