import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import { floatsOf, poisoned } from './kv-attention.js';
import { asStored, Draw } from './kv-case.js';
import {
  attended,
  batchOf,
  type Case,
  checkAttention,
  checkStored,
  downloaded,
  outputTypes,
  type Sequence,
  storedWidthOf,
  type Tokens,
  widthOf,
} from './kv-check.js';
import { gridOf, quantizeRows, type Rows, rowsOf, sidesOf } from './kv-numbers.js';

/** Sizes of queries: scores that leave one token alone, and scores that leave many. */
const SIZES = [2 ** -3, 2 ** -6] as const;

/** Page numbers, the last page first. */
function tableFor(tokens: number, page: number): number[] {
  const count = Math.max(1, Math.ceil(tokens / page));
  return Array.from({ length: count }, (_, i) => count - 1 - i);
}

function make({ device, maker, scheme, page }: Case, tokens: number): Sequence {
  const table = tableFor(tokens, page.tokens);
  const cache = maker.make(device, scheme, page, table.length);
  return { cache, sequence: cache.sequence(table), table };
}

const upload = (rt: NativeRuntime, x: Float32Array, rows: number): Tensor =>
  uploadTyped(rt, 'f32', [rows, rows === 0 ? 0 : x.length / rows], x);

function drawTokens(one: Case, draw: Draw, length: number): Tokens {
  const width = widthOf(one);
  return { k: draw.rows(length, width), v: draw.rows(length, width) };
}

/** A prompt: what it leaves in the pages, and attention of two queries over it. */
export async function prompt(one: Case, length: number): Promise<void> {
  const { device, page, queries, seed } = one;
  const draw = new Draw(seed + 31 * length + page.tokens);
  const tokens = drawTokens(one, draw, length);
  const made = make(one, length);
  const [k, v] = [tokens.k, tokens.v].map((x) => uploadTyped(device, 'f32', [length, widthOf(one)], x)) as [
    Tensor,
    Tensor,
  ];
  made.sequence.prefill(k, v);
  const held = await checkStored(one, made, tokens, length, `a prompt of ${length} tokens`);
  for (const [i, type] of outputTypes(one).entries()) {
    const q = draw.rows(1, queries.heads * page.headDim, SIZES[i]);
    const input = upload(device, q, 1);
    const y = await attended(one, made.cache, [made.sequence], input, type);
    await checkAttention(one, q, held, y, type, `a prompt of ${length} tokens`);
    input.dispose();
  }
  for (const tensor of [k, v]) tensor.dispose();
  made.sequence.dispose();
  made.cache.dispose();
}

/** Sequences of these lengths in one pool, their pages by turns: attention of all of them at once. */
export async function together(one: Case, lengths: readonly number[]): Promise<void> {
  const { device, maker, scheme, page, queries, seed } = one;
  const width = widthOf(one);
  const batch = batchOf(one);
  const draw = new Draw(seed + 13 * page.tokens + lengths.length);
  const need = lengths.map((length) => Math.max(1, Math.ceil(length / page.tokens)));
  let pages = 0;
  // Page j of every sequence that has one, then page j + 1.
  const tables = lengths.map(() => [] as number[]);
  for (let j = 0; j < Math.max(...need); j++)
    for (const [b, count] of need.entries()) if (j < count) tables[b]?.push(pages++);
  const cache = maker.make(device, scheme, page, pages);
  const sequences = tables.map((table) => cache.sequence(table));
  const held = lengths.map((length, b): [Rows, Rows] => {
    const tokens = drawTokens(one, draw, length);
    const [k, v] = [tokens.k, tokens.v].map((x) => uploadTyped(device, 'f32', [length, width], x)) as [Tensor, Tensor];
    sequences[b]?.prefill(k, v);
    for (const tensor of [k, v]) tensor.dispose();
    const stored = { k: asStored(tokens.k, page), v: asStored(tokens.v, page) };
    return sidesOf(scheme, stored, length - (length % batch), length, storedWidthOf(one));
  });
  const count = queries.heads * page.headDim;
  const q = draw.rows(lengths.length, count, SIZES[1]);
  const input = upload(device, q, lengths.length);
  for (const type of outputTypes(one)) {
    const y = await attended(one, cache, sequences, input, type);
    for (const [b, length] of lengths.entries()) {
      const row = <T extends { slice(from: number, to: number): T }>(x: T): T => x.slice(b * count, (b + 1) * count);
      const where = `${length} tokens, one of ${lengths.length} sequences`;
      await checkAttention(one, row(q), held[b] as [Rows, Rows], row(y), type, where);
    }
  }
  input.dispose();
  for (const sequence of sequences) sequence.dispose();
  cache.dispose();
}

/** Tokens appended one by one: attention on the way, and in the end the bytes of a prompt of as many. */
export async function appended(one: Case, steps: number): Promise<void> {
  const { device, recorder, scheme, page, queries, seed, name } = one;
  const [width, storedWidth] = [widthOf(one), storedWidthOf(one)];
  const batch = batchOf(one);
  const draw = new Draw(seed + 7 * page.tokens + 1);
  const tokens = drawTokens(one, draw, steps);
  const grown = make(one, steps);
  const [k, v] = [tokens.k, tokens.v].map((x) => upload(device, x, steps)) as [Tensor, Tensor];
  const numbers = (['keys', 'values'] as const).map((side) => {
    const x = asStored(side === 'keys' ? tokens.k : tokens.v, page);
    const grid = gridOf(scheme, side);
    return { x, grid, all: quantizeRows(x, steps - (steps % batch), storedWidth, grid) };
  });
  const [type] = outputTypes(one);
  if (type === undefined) return;
  for (let t = 0; t < steps; t++) {
    const [key, value] = [k, v].map((x) => x.view([1, width], t * width)) as [Tensor, Tensor];
    const q = draw.rows(1, queries.heads * page.headDim, SIZES[t % 2]);
    const input = upload(device, q, 1);
    const y = poisoned(device, type, [1, q.length]);
    grown.sequence.step(key, value, input, y, queries);
    // Around every flush, and every 29th between.
    if ((batch > 1 && (t % batch < 2 || t % batch === batch - 1)) || t % 29 === 0) {
      const got = await floatsOf(device, y);
      const length = t + 1;
      const packed = scheme.residual === 0 ? length - (length % batch) : t - (t % batch);
      const held = numbers.map(({ x, grid, all }) =>
        rowsOf({ ...all, codes: all.codes.subarray(0, packed * storedWidth) }, x, length, storedWidth, grid),
      ) as [Rows, Rows];
      await checkAttention(one, q, held, got, type, `after ${length} appended tokens`);
    }
    for (const tensor of [key, value, input, y]) tensor.dispose();
  }
  await checkStored(one, grown, tokens, steps, `${steps} appended tokens`);
  const again = make(one, steps);
  again.sequence.prefill(k, v);
  const [left, right] = [await downloaded(device, grown.cache.tensors), await downloaded(device, again.cache.tensors)];
  for (const [i, tensor] of left.entries()) {
    const message = `${name}: ${steps} appended tokens give other bytes than a prompt of the same length (tensor ${i})`;
    recorder.check(Buffer.compare(tensor.bytes(), (right[i] as Tensor).bytes()) === 0, { check: 'kv', message });
  }
  for (const tensor of [...left, ...right, k, v]) tensor.dispose();
  for (const { sequence, cache } of [grown, again]) {
    sequence.dispose();
    cache.dispose();
  }
}
