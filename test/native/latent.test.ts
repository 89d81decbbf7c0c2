import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type LatentPageShape, latentPageParts } from '../../formats/kv/latent.js';
import { createRuntime, fromTyped, type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { latentPage } from '../../src/kv/latent.js';
import { pack } from '../../src/layout/engine.js';
import { decodeF16, poisoned, Random } from './support.js';

const random = new Random(77);

/** f16 of ordinary size, either sign. */
const halves = (count: number): Uint16Array =>
  Uint16Array.from({ length: count }, () => (random.integer(0, 1) << 15) | random.integer(0x3000, 0x4200));

const f16 = (bits: Uint16Array, shape: readonly number[]): Tensor => fromTyped('f16', shape, bits);
const i32 = (values: readonly number[], shape: readonly number[]): Tensor =>
  fromTyped('i32', shape, Int32Array.from(values));

const SHAPES: readonly LatentPageShape[] = [
  { bits: 4, group: 128, latent: 512, rotary: 64, tokens: 64 },
  { bits: 8, group: 64, latent: 256, rotary: 32, tokens: 32 },
  { bits: 2, group: 32, latent: 64, rotary: 16, tokens: 32 },
  { bits: 16, group: 128, latent: 192, rotary: 48, tokens: 32 },
];
const form = ({ bits, group, latent, rotary, tokens }: LatentPageShape) => ({
  ...{ bits, group, latent, rotary, pageTokens: tokens },
});

for (const shape of SHAPES) {
  const { bits, group, latent, rotary, tokens } = shape;
  const named = `${bits} bits, ${latent} + ${rotary} dims, groups of ${group}`;
  const parts = latentPageParts(shape);
  const bytes = parts[0] + parts[1] + parts[2];

  test(`latent_pack writes what the layout's algebra says and appends alike: ${named}`, async () => {
    const rt = createRuntime(2);
    const count = tokens + 5;
    const [c, rope] = [halves(count * latent), halves(count * rotary)];
    const table = i32([2, 0], [2]);
    const pages = poisoned('u8', [3, bytes]);
    pages.bytes().fill(0);
    const head = count - 2;
    const rows = (x: Uint16Array, width: number, from: number, to: number): Tensor =>
      f16(x.slice(from * width, to * width), [to - from, width]);
    ops.latentPack(rt, rows(c, latent, 0, head), rows(rope, rotary, 0, head), table, pages, form(shape));
    const lengths = i32([head], [1]);
    for (let t = head; t < count; t++)
      ops.latentAppend(
        rt,
        rows(c, latent, t, t + 1),
        rows(rope, rotary, t, t + 1),
        { pages, table: i32([2, 0], [1, 2]), lengths },
        form(shape),
      );
    await rt.sync();
    assert.equal(typed(lengths)[0], count);

    // By the quantizer of keys and values, and the one layout engine.
    const page = latentPage(shape);
    assert.equal(page.bytes, bytes);
    const expected = poisoned('u8', [2, bytes]);
    expected.bytes().fill(0);
    const padded = (x: Uint16Array, width: number): Uint16Array => {
      const all = new Uint16Array(2 * tokens * width);
      all.set(x);
      return all;
    };
    const full = f16(padded(c, latent), [2 * tokens, latent]);
    const keys = f16(padded(rope, rotary), [2 * tokens, rotary]);
    const numbers = {
      codes: poisoned('u8', [2 * tokens, latent]),
      scales: poisoned('f16', [2 * tokens, Math.ceil(latent / group)]),
      zeros: poisoned('f16', [2 * tokens, Math.ceil(latent / group)]),
    };
    if (bits !== 16) ops.kvQuantize(rt, full, numbers, { bits, groupTokens: 1, groupDims: group });
    for (const p of [0, 1]) {
      const to = expected.view([bytes], p * bytes);
      const put = (layout: Parameters<typeof pack>[1], x: Tensor): void => {
        const width = x.shape[1] as number;
        pack(rt, layout, x.view([tokens, width], p * tokens * width), to, { keep: true });
      };
      put(page.codes, bits === 16 ? full : numbers.codes);
      if (page.scales && page.zeros) {
        put(page.scales, numbers.scales);
        put(page.zeros, numbers.zeros);
      }
      put(page.rotary, keys);
    }
    await rt.sync();
    assert.deepEqual(pages.view([bytes], 2 * bytes).bytes(), expected.view([bytes], 0).bytes());
    assert.deepEqual(pages.view([bytes], 0).bytes(), expected.view([bytes], bytes).bytes());
  });

  test(`latent_decode sums what the spec's bytes stand for: ${named}`, async () => {
    const rt = createRuntime(3);
    const [heads, queries, lengths] = [3, 2, [tokens + 7, 1]] as const;
    const width = latent + rotary;
    const pages = poisoned('u8', [3, bytes]);
    const rows: number[][][] = [];
    for (const [b, length] of lengths.entries()) {
      const [c, rope] = [halves(length * latent), halves(length * rotary)];
      ops.latentPack(
        ...([rt, f16(c, [length, latent]), f16(rope, [length, rotary])] as const),
        i32(b === 0 ? [1, 0] : [2], [b === 0 ? 2 : 1]),
        pages,
        form(shape),
      );
    }
    await rt.sync();
    // Read back dim by dim, by formats/kv/spec.md.
    const all = pages.bytes();
    const u16 = (at: number): number => (all[at] as number) | ((all[at + 1] as number) << 8);
    const perWord = 32 / bits;
    for (const [b, length] of lengths.entries()) {
      const own: number[][] = [];
      for (let t = 0; t < length; t++) {
        const base = (b === 0 ? (t < tokens ? 1 : 0) : 2) * bytes;
        const at = t % tokens;
        own.push(
          Array.from({ length: width }, (_, d) => {
            if (d >= latent) return decodeF16(u16(base + parts[0] + parts[1] + 2 * (at * rotary + d - latent)));
            const bit =
              at * latent * bits + Math.floor(d / perWord) * 32 + (d % 2) * 16 + (((d % perWord) / 2) | 0) * bits;
            const word = u16(base + 2 * Math.floor(bit / 16));
            if (bits === 16) return decodeF16(word);
            const number = base + parts[0] + 4 * ((at * latent) / group + Math.floor(d / group));
            return ((word >> (bit % 16)) & (2 ** bits - 1)) * decodeF16(u16(number)) + decodeF16(u16(number + 2));
          }),
        );
      }
      rows.push(own);
    }
    const q = halves(2 * queries * heads * width);
    const y = poisoned('f32', [2 * queries, heads * latent]);
    const scale = 1 / width;
    const cache = { pages, table: i32([1, 0, 2, -1], [2, 2]), lengths: i32(lengths, [2]) };
    ops.latentDecode(rt, f16(q, [2 * queries, heads * width]), cache, y, { ...form(shape), heads, queries, scale });
    await rt.sync();
    for (const [b, length] of lengths.entries())
      for (let query = 0; query < queries; query++)
        for (let h = 0; h < heads; h++) {
          const seen = Math.max(0, length - queries + query + 1);
          const at = (b * queries + query) * heads + h;
          const own = (rows[b] as number[][]).slice(0, seen);
          const scores = own.map(
            (row) => scale * row.reduce((sum, x, d) => sum + x * decodeF16(q[at * width + d] as number), 0),
          );
          const most = Math.max(...scores);
          const weights = scores.map((score) => Math.exp(score - most));
          const total = weights.reduce((sum, w) => sum + w, 0);
          for (let d = 0; d < latent; d++) {
            const want =
              seen === 0
                ? 0
                : own.reduce((sum, row, t) => sum + ((weights[t] as number) * (row[d] as number)) / total, 0);
            // What is read is rounded to f16 (2^-11 of up to 4), which moves scores by scale times as much a dim, and so weights.
            const bound = 4 * 2 ** -11 * (1 + 2 * 4 * 4 * width * scale);
            assert.ok(Math.abs((typed(y)[at * latent + d] as number) - want) <= bound, `${b} ${query} ${h} ${d}`);
          }
        }
  });
}

test('what is no cache of latents is refused by name', async () => {
  const shape = SHAPES[2] as LatentPageShape;
  const parts = latentPageParts(shape);
  const bytes = parts[0] + parts[1] + parts[2];
  const refused = async (change: object, names: RegExp, code = 'LPQ_NATIVE_ARGUMENT', more: Partial<Given> = {}) => {
    const rt = createRuntime(1);
    const given = { length: 3, page: 0, x: halves(3 * 64), ...more };
    const pages = poisoned('u8', [1, bytes]);
    const table = i32([given.page], [1, 1]);
    const p = { ...form(shape), ...change };
    ops.latentPack(rt, f16(given.x, [3, 64]), f16(halves(48), [3, 16]), table.view([1]), pages, p);
    const cache = { pages, table, lengths: i32([given.length], [1]) };
    ops.latentDecode(rt, f16(halves(80), [1, 80]), cache, poisoned('f32', [1, 64]), { ...p, heads: 1, scale: 1 });
    await assert.rejects(rt.sync(), (error: Error & { code: string }) => {
      assert.equal(error.code, code);
      assert.match(error.message, names);
      return true;
    });
  };
  interface Given {
    readonly length: number;
    readonly page: number;
    readonly x: Uint16Array;
  }
  await refused({ bits: 3 }, /bits is not 2, 4, 8 or 16/);
  await refused({ latent: 96 }, /latent is not a multiple of 64/);
  await refused({ latent: 576 }, /latent is not a multiple of 64/);
  await refused({ rotary: 8 }, /rotary is not a multiple of 16/);
  await refused({ group: 48 }, /group is not 32, 64 or 128/);
  await refused({ group: 128 }, /group does not divide latent/);
  await refused({ pageTokens: 16 }, /pageTokens is no multiple of 32/);
  await refused({ pageTokens: 64 }, /pages/);
  await refused({}, /the table has too few pages/, 'LPQ_NATIVE_ARGUMENT', { length: 33 });
  await refused({}, /the table names page 1, which is none/, 'LPQ_NATIVE_ARGUMENT', { page: 1 });
  await refused({}, /NaN/, 'LPQ_NATIVE_NUMERICS', {
    x: Uint16Array.from({ length: 192 }, (_, i) => (i === 99 ? 0x7e00 : 0)),
  });
});
