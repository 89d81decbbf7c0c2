import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, fromTyped, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';

const rt = createRuntime(3);

const integers = (length: number, seed: number, low: number, high: number): Int32Array => {
  let state = seed >>> 0;
  return Int32Array.from({ length }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return low + ((state >>> 10) % (high - low + 1));
  });
};

test("gemmComet gives gemmW4ax's bytes, from activations that are stored in 4 and 8 bits", async () => {
  const [m, n, k] = [5, 21, 512];
  const precision = Uint8Array.of(4, 8, 4, 4);
  const places = Int32Array.of(~0, 0, ~1, ~2);
  const clip = Float32Array.of(0.9, 1, 0.8, 1);
  const order = Int32Array.from({ length: k }, (_, i) => (i * 77) % k);
  const x = fromTyped(
    'f32',
    [m, k],
    Float32Array.from(integers(m * k, 1, -1000, 1000), (v) => v / 64),
  );
  const form = {
    bits: fromTyped('u8', [4], precision),
    clip: fromTyped('f32', [4], clip),
    order: fromTyped('i32', [k], order),
  };
  const plain = { codes: allocate('i8', [m, k]), scales: allocate('f32', [m, 4]) };
  ops.quantizeActivations(rt, x, form, plain);
  const blocks = fromTyped('i32', [4], places);
  const stored = { x8: allocate('i8', [m, 128]), x4: allocate('u8', [m, 192]), scales: allocate('f32', [4, 8]) };
  ops.quantizeComet(rt, x, { ...form, blocks }, stored);
  await rt.sync();
  const codes = typed<Int8Array>(plain.codes);
  for (let t = 0; t < m; t++)
    for (let i = 0; i < k; i++) {
      const [block, inside] = [i >> 7, i & 127];
      const place = places[block]!;
      const byte = typed<Uint8Array>(stored.x4)[t * 192 + ~place * 64 + (inside >> 5) * 16 + (inside & 15)]!;
      const nibble = inside & 16 ? byte >> 4 : byte & 15;
      const got = place >= 0 ? typed<Int8Array>(stored.x8)[t * 128 + place * 128 + inside]! : (nibble ^ 8) - 8;
      assert.equal(got, codes[t * k + i]);
      assert.equal(typed<Float32Array>(stored.scales)[block * 8 + t], typed<Float32Array>(plain.scales)[t * 4 + block]);
    }

  const w = integers(n * k, 2, -8, 7);
  const groups = Float32Array.from(integers(n * 4, 3, 1, 999), (v) => Math.fround(v / 5000));
  const words = new Uint8Array(2 * 4 * 1024);
  const turned = new Float32Array(4 * 24);
  for (let r = 0; r < n; r++) {
    for (let b = 0; b < 4; b++) turned[b * 24 + r] = groups[r * 4 + b]!;
    for (let i = 0; i < k; i++) {
      const [chunk, quad, high] = [(i % 128) >> 5, (i % 16) >> 2, (i % 32) >> 4];
      const word = 128 * (chunk >> 1) + 4 * (4 * (r % 8) + quad) + 2 * (chunk & 1) + ((r % 16) >> 3);
      words[((r >> 4) * 4 + (i >> 7)) * 1024 + 4 * word + (i % 4)]! |= (w[r * k + i]! & 15) << (4 * high);
    }
  }
  const bias = fromTyped('f32', [n], Float32Array.from(integers(n, 4, -50, 50)));
  const [want, got] = [allocate('f32', [m, n]), allocate('f32', [m, n])];
  const weights = { codes: fromTyped('i8', [n, k], Int8Array.from(w)), scales: fromTyped('f32', [n, 4], groups) };
  ops.gemmW4ax(rt, plain, weights, bias, want);
  const packed = { codes: fromTyped('u8', [2, 4, 1024], words), scales: fromTyped('f32', [4, 24], turned) };
  ops.gemmComet(rt, { ...stored, blocks }, packed, bias, got);
  await rt.sync();
  // gemmW4ax starts from the bias and adds the sum, gemmComet the other way round: one fp32 addition either way.
  assert.deepEqual(typed<Float32Array>(got), typed<Float32Array>(want));
});

test('gemmComet of a two-level grid: integer sums with factors inside, tokens scaled block by block, rows at the end', async () => {
  const [m, n, k] = [3, 21, 384];
  const places = Int32Array.of(~0, 0, ~1);
  const codes = integers(m * k, 11, -7, 7);
  for (let t = 0; t < m; t++) codes.set(integers(128, 12 + t, -127, 127), t * k + 128);
  const x8 = new Int8Array(m * 128);
  const x4 = new Uint8Array(m * 128);
  const w = integers(n * k, 16, -8, 7);
  const factors = Int8Array.from(integers(3 * 32, 17, -15, 16));
  const words = new Uint8Array(2 * 3 * 1024);
  for (let i = 0; i < k; i++) {
    const [block, inside, chunk, quad, high] = [i >> 7, i & 127, (i % 128) >> 5, (i % 16) >> 2, (i % 32) >> 4];
    for (let t = 0; t < m; t++) {
      const code = codes[t * k + i]!;
      if (places[block]! >= 0) x8[t * 128 + inside] = code;
      else x4[t * 128 + ~places[block]! * 64 + chunk * 16 + (i % 16)]! |= (code & 15) << (4 * high);
    }
    for (let r = 0; r < n; r++) {
      const word = 128 * (chunk >> 1) + 4 * (4 * (r % 8) + quad) + 2 * (chunk & 1) + ((r % 16) >> 3);
      words[((r >> 4) * 3 + block) * 1024 + 4 * word + (i % 4)]! |= (w[r * k + i]! & 15) << (4 * high);
    }
  }
  const tokens = Float32Array.from(integers(3 * 4, 18, 1, 999), (v) => Math.fround(v / 3000));
  const rows = Float32Array.from(integers(n, 19, 1, 999), (v) => Math.fround(v / 7000));
  const bias = Float32Array.from(integers(n, 20, -50, 50));
  const x = {
    x8: fromTyped('i8', [m, 128], x8),
    x4: fromTyped('u8', [m, 128], x4),
    scales: fromTyped('f32', [3, 4], tokens),
    blocks: fromTyped('i32', [3], places),
  };
  const weights = (groups: Int8Array, width = 32) => ({
    codes: fromTyped('u8', [2, 3, 1024], words),
    scales: fromTyped('f32', [n], rows),
    groups: fromTyped('i8', [3, width], groups.slice(0, 3 * width)),
  });
  const y = allocate('f32', [m, n]);
  ops.gemmComet(rt, x, weights(factors), fromTyped('f32', [n], bias), y);
  await rt.sync();
  for (let t = 0; t < m; t++)
    for (let r = 0; r < n; r++) {
      let sum = 0;
      for (let b = 0; b < 3; b++) {
        let part = 0n;
        for (let i = 128 * b; i < 128 * b + 128; i++)
          part += BigInt(codes[t * k + i]! * w[r * k + i]! * factors[b * 32 + r]!);
        sum = Math.fround(Number(part) * tokens[b * 4 + t]! + sum); // an fma: the product of 21 and 24 bits is exact in double
      }
      assert.equal(typed<Float32Array>(y)[t * n + r], Math.fround(Math.fround(sum * rows[r]!) + bias[r]!), `${t} ${r}`);
    }
  const wrong = factors.slice();
  wrong[40] = -16;
  ops.gemmComet(rt, x, weights(wrong), undefined, y);
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', message: /-16 for row 8 and group 1/ });
  ops.gemmComet(rt, x, weights(factors, 24), undefined, y);
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', message: /rows of group_scales are 24 long, not 32/ });
  ops.gemmComet(rt, x, { ...weights(factors), scales: allocate('f32', [3, 24]) }, undefined, y);
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', message: /w_scales/ });
});

test('quantizeComet and gemmComet refuse blocks that are not there and precisions that do not match', async () => {
  const x = fromTyped('f32', [1, 256], new Float32Array(256).fill(1));
  const clip = fromTyped('f32', [2], Float32Array.of(1, 1));
  const out = { x8: allocate('i8', [1, 128]), x4: allocate('u8', [1, 64]), scales: allocate('f32', [2, 4]) };
  const refused = async (bits: number[], places: number[]): Promise<void> => {
    const form = {
      bits: fromTyped('u8', [2], Uint8Array.from(bits)),
      clip,
      blocks: fromTyped('i32', [2], Int32Array.from(places)),
    };
    ops.quantizeComet(rt, x, form, out);
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT' });
  };
  await refused([4, 8], [0, ~0]);
  await refused([4, 8], [~1, 0]);
  await refused([4, 8], [~0, 1]);
  const w = { codes: allocate('u8', [1, 2, 1024]), scales: allocate('f32', [2, 4]) };
  const blocks = fromTyped('i32', [2], Int32Array.of(~0, 3));
  ops.gemmComet(rt, { ...out, blocks }, w, undefined, allocate('f32', [1, 4]));
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT' });
});
