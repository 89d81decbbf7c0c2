import { type KvScheme, printKvScheme } from '../../formats/kv/scheme.js';
import { allocate, fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { planSource } from '../model/graph.js';
import type { WeightSource } from '../model/source.js';
import {
  type CacheMaker,
  type CacheUnderTest,
  Draw,
  decodeSide,
  exactAttention,
  gridOf,
  halfValue,
  type Numbers,
  numbersOf,
  type PageShape,
  type Queries,
  quantizeRows,
  type SequenceUnderTest,
} from './kv-case.js';
import { settle } from './native.js';
import type { Recorder } from './report.js';

export interface KvContext {
  readonly runtime: NativeRuntime;
  readonly recorder: Recorder;
  readonly maker: CacheMaker;
  readonly seed: number;
  /** Tokens of the long run, default 1000; 0: none. */
  readonly steps?: number;
}

/** Heads that a case has at most: every one of a model is packed alike. */
const MOST_HEADS = 2;
const STEPS = 1000;

interface Case extends KvContext {
  readonly scheme: KvScheme;
  readonly page: PageShape & { readonly block: number };
  readonly queries: Queries;
  readonly name: string;
}

/**
 * Proves the cache of keys and values that a scheme describes, for every shape of heads of the model, on random data: packed
 * bytes against the verifier's own quantizer and decoder, attention elementwise against fp64, prompts of every length around
 * multiples of the residual, pages in any order and one contiguous one, empty and one-token caches, and, in small pages, 1000
 * appended tokens against a prompt.
 */
export async function verifyCache(context: KvContext, scheme: KvScheme, source: WeightSource): Promise<void> {
  const { recorder, maker, steps = STEPS } = context;
  const block = maker.block(scheme);
  const batch = Math.max(scheme.residual, block);
  const shapes = new Map<string, { heads: number; kvHeads: number; headDim: number; scale: number }>();
  for (const { attention } of planSource(source).blocks)
    if (attention.kind === 'attention') {
      const kvHeads = Math.min(attention.kvHeads, MOST_HEADS);
      const heads = (attention.heads / attention.kvHeads) * kvHeads;
      const shape = { heads, kvHeads, headDim: attention.headDim, scale: attention.scale };
      shapes.set(JSON.stringify(shape), shape);
    }
  for (const { heads, kvHeads, headDim, scale } of shapes.values())
    for (const [i, [order, tokens]] of pagings(scheme, block, batch).entries()) {
      const page = { heads: kvHeads, headDim, tokens, order, block };
      const name = `${heads}/${kvHeads} heads of ${headDim}, pages of ${tokens} tokens${order === 'outer' ? ', heads outside' : ''}`;
      const one: Case = { ...context, scheme, page, queries: { heads, scale }, name };
      for (const length of lengthsAround(batch)) await prompt(one, length);
      if (i === 0 && steps > 0) await appended(one, batch, steps);
    }
  recorder.detail('kv', printKvScheme(scheme));
}

/** One page for everything, and small ones. */
function pagings(scheme: KvScheme, block: number, batch: number): readonly (readonly ['inner' | 'outer', number])[] {
  const small = scheme.form === 'turbomind' ? 64 : block;
  const whole = Math.ceil((STEPS + 3 * batch) / small) * small;
  return scheme.form === 'turbomind'
    ? [['inner', small]]
    : [
        ['inner', small],
        ['inner', whole],
        ['outer', 2 * small],
      ];
}

function lengthsAround(batch: number): number[] {
  const near = [1, 2, 3].flatMap((times) => [times * batch - 1, times * batch, times * batch + 1]);
  return [...new Set([0, 1, 2, ...near, 3 * batch + Math.floor(batch / 3)])].filter((length) => length >= 0);
}

/** Page numbers, the last page first. */
function tableFor(tokens: number, page: number): number[] {
  const count = Math.max(1, Math.ceil(tokens / page));
  return Array.from({ length: count }, (_, i) => count - 1 - i);
}

interface Rows {
  readonly k: Float32Array<ArrayBuffer>;
  readonly v: Float32Array<ArrayBuffer>;
}

function make(
  { runtime, maker, scheme, page }: Case,
  tokens: number,
): { cache: CacheUnderTest; sequence: SequenceUnderTest; table: number[] } {
  const table = tableFor(tokens, page.tokens);
  const cache = maker.make(runtime, scheme, page, table.length);
  return { cache, sequence: cache.sequence(table), table };
}

async function prompt(one: Case, length: number): Promise<void> {
  const { runtime, page, queries, seed } = one;
  const width = page.heads * page.headDim;
  const draw = new Draw(seed + 31 * length + page.tokens);
  const rows: Rows = { k: draw.rows(length, width), v: draw.rows(length, width) };
  const { cache, sequence, table } = make(one, length);
  const [k, v] = [rows.k, rows.v].map((x) => fromTyped('f32', [length, width], x)) as [Tensor, Tensor];
  sequence.prefill(k, v);
  const held = await stored(one, cache, sequence, table, rows, length, `a prompt of ${length} tokens`);
  const q = draw.rows(1, queries.heads * page.headDim);
  const input = fromTyped('f32', [1, q.length], q);
  for (const [dtype, unit] of [
    ['f32', 2 ** -24],
    ['f64', 2 ** -52], // the reference rounds as well
  ] as const) {
    const y = poisoned(dtype, [1, q.length]);
    cache.attend([sequence], input, y, queries);
    await settle(runtime);
    await compareAttention(
      one,
      q,
      held,
      Float64Array.from(typed<Float32Array>(y)),
      unit,
      `a prompt of ${length} tokens (${dtype})`,
    );
    y.dispose();
  }
  for (const tensor of [k, v, input]) tensor.dispose();
  sequence.dispose();
  cache.dispose();
}

/** What a sequence holds, read by the verifier, compared with what it should; returns keys and values as numbers. */
async function stored(
  one: Case,
  cache: CacheUnderTest,
  sequence: SequenceUnderTest,
  table: readonly number[],
  rows: Rows,
  length: number,
  where: string,
): Promise<[Float64Array<ArrayBuffer>, Float64Array<ArrayBuffer>]> {
  const { runtime, recorder, scheme, page, name } = one;
  const width = page.heads * page.headDim;
  const batch = Math.max(scheme.residual, page.block);
  const packed = length - (length % batch);
  await settle(runtime);
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
    message: `${name}, ${where}: the tokens are divided wrongly`,
  });
  const sides: Float64Array<ArrayBuffer>[] = [];
  for (const side of ['keys', 'values'] as const) {
    const x = side === 'keys' ? rows.k : rows.v;
    const grid = gridOf(scheme, side);
    const expected = quantizeRows(x, packed, width, grid);
    const found = await decodeSide(runtime, cache.tensors, scheme, page, side, table, packed);
    for (const part of ['codes', 'scales', 'zeros'] as const) {
      const [got, want] = [found[part], expected[part]] as [Numbers['scales'], Numbers['scales']];
      const at = want.findIndex((value, i) => got[i] !== value);
      if (at >= 0)
        fail(`${part} of ${side}, element ${at},`, got[at] as number, want[at] as number, part === 'codes' ? at : 0);
      else recorder.count('kv');
    }
    const tail = typed<Uint16Array>(side === 'keys' ? sequence.tailKeys : sequence.tailValues);
    const rest = x.subarray(packed * width, length * width);
    const wrong = rest.findIndex((value, i) => halfValue(tail[i] as number) !== value);
    if (wrong >= 0)
      fail(`the tail of ${side}`, halfValue(tail[wrong] as number), rest[wrong] as number, packed * width + wrong);
    else recorder.count('kv');
    sides.push(numbersOf(expected, x, length, width, grid));
  }
  return sides as [Float64Array<ArrayBuffer>, Float64Array<ArrayBuffer>];
}

/** The rows of a cache before a step of attention that counts the newest as exact. */
async function compareAttention(
  { runtime, recorder, page, queries, name }: Case,
  q: Float32Array<ArrayBuffer>,
  held: readonly [Float64Array<ArrayBuffer>, Float64Array<ArrayBuffer>],
  got: Float64Array,
  unit: number,
  where: string,
): Promise<void> {
  const exact = await exactAttention(runtime, q, held, {
    ...queries,
    kvHeads: page.heads,
    headDim: page.headDim,
    unit,
  });
  const at = got.findIndex((value, i) => !(Math.abs(value - (exact.y[i] as number)) <= (exact.bound[i] as number)));
  recorder.check(at < 0, {
    check: 'kv',
    column: at,
    got: got[at] as number,
    expected: exact.y[at] as number,
    message: `${name}, ${where}: output ${at} of attention is ${got[at]}, not ${exact.y[at]} within ${exact.bound[at]}`,
  });
}

/** Tokens appended one by one: attention on the way, and in the end the bytes of a prompt of as many. */
async function appended(one: Case, batch: number, steps: number): Promise<void> {
  const { runtime, recorder, scheme, page, queries, seed, name } = one;
  const width = page.heads * page.headDim;
  const draw = new Draw(seed + 7 * page.tokens + 1);
  const rows: Rows = { k: draw.rows(steps, width), v: draw.rows(steps, width) };
  const grown = make(one, steps);
  const [k, v] = [rows.k, rows.v].map((x) => fromTyped('f32', [steps, width], x)) as [Tensor, Tensor];
  const numbers = (['keys', 'values'] as const).map((side) => {
    const x = side === 'keys' ? rows.k : rows.v;
    const packed = steps - (steps % batch);
    return { x, grid: gridOf(scheme, side), all: quantizeRows(x, packed, width, gridOf(scheme, side)) };
  });
  for (let t = 0; t < steps; t++) {
    const [key, value] = [k, v].map((x) => x.view([1, width], t * width)) as [Tensor, Tensor];
    const q = draw.rows(1, queries.heads * page.headDim);
    const input = fromTyped('f32', [1, q.length], q);
    const y = poisoned('f32', [1, q.length]);
    grown.sequence.step(key, value, input, y, queries);
    // Around every flush, and every 29th between.
    if (t % batch < 2 || t % batch === batch - 1 || t % 29 === 0) {
      await settle(runtime);
      const length = t + 1;
      const packed = scheme.residual === 0 ? length - (length % batch) : t - (t % batch);
      const held = numbers.map(({ x, grid, all }) => {
        const columns = width / grid.groupDims;
        const part = {
          codes: all.codes.subarray(0, packed * width),
          scales: all.scales.subarray(0, (packed / grid.groupTokens) * columns),
          zeros: all.zeros,
        };
        return numbersOf(part, x, length, width, grid);
      }) as [Float64Array<ArrayBuffer>, Float64Array<ArrayBuffer>];
      if (batch > 1 || t % 29 === 0)
        await compareAttention(
          one,
          q,
          held,
          Float64Array.from(typed<Float32Array>(y)),
          2 ** -24,
          `after ${length} appended tokens`,
        );
    }
    for (const tensor of [key, value, input, y]) tensor.dispose();
  }
  await stored(one, grown.cache, grown.sequence, grown.table, rows, steps, `${steps} appended tokens`);
  const again = make(one, steps);
  again.sequence.prefill(k, v);
  await settle(runtime);
  for (const [i, tensor] of grown.cache.tensors.entries())
    recorder.check(Buffer.compare(tensor.bytes(), (again.cache.tensors[i] as Tensor).bytes()) === 0, {
      check: 'kv',
      message: `${name}: ${steps} appended tokens leave other bytes than a prompt of as many (tensor ${i})`,
    });
  for (const { sequence, cache } of [grown, again]) {
    sequence.dispose();
    cache.dispose();
  }
  for (const tensor of [k, v]) tensor.dispose();
}

function poisoned(dtype: 'f32' | 'f64', shape: readonly number[]): Tensor {
  const tensor = allocate(dtype, shape);
  tensor.bytes().fill(0xff);
  return tensor;
}
