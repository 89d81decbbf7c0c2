import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { allocate, createRuntime, fromTyped, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';

const rt = createRuntime(3);

const round = (value: number): number => {
  const down = Math.floor(value);
  const rest = value - down;
  return rest > 0.5 || (rest === 0.5 && down % 2 !== 0) ? down + 1 : down;
};
const e4m3 = (code: number): number => {
  const size = code & 0x78 ? 2 ** ((code >> 3) & 15) * (8 + (code & 7)) : 2 * (code & 7);
  return (code & 0x80 ? -size : size) / 2 ** 10;
};
/** The code whose number is nearest, by trying all; ties to the even code. */
const nearest = (value: number): number => {
  let best = 0;
  for (let code = 0; code < 127; code++) {
    const [off, least] = [Math.abs(e4m3(code) - Math.abs(value)), Math.abs(e4m3(best) - Math.abs(value))];
    if (off < least || (off === least && code % 2 === 0)) best = code;
  }
  return best | (value < 0 || Object.is(value, -0) ? 0x80 : 0);
};
const numbers = fc.double({ min: -1e4, max: 1e4, noNaN: true }).map(Math.fround);

test('quantizeTokens: one scale a token, codes rounded to nearest even', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 1, max: 4 }),
      fc.integer({ min: 1, max: 40 }),
      fc.constantFrom('i8' as const, 'f8_e4m3' as const),
      fc.infiniteStream(numbers),
      async (rows, k, dtype, stream) => {
        const values = Float32Array.from({ length: rows * k }, () => stream.next().value as number);
        const x = fromTyped('f32', [rows, k], values);
        const out = { codes: allocate(dtype, [rows, k]), scales: allocate('f32', [rows]) };
        ops.quantizeTokens(rt, x, out);
        await rt.sync();
        const top = dtype === 'i8' ? 127 : 448;
        const codes = typed<Int8Array | Uint8Array>(out.codes);
        for (let t = 0; t < rows; t++) {
          const token = values.subarray(t * k, t * k + k);
          const scale = Math.fround(Math.max(...token.map(Math.abs)) * Math.fround(1 / top));
          const kept = scale < 2 ** -126 ? 0 : scale;
          assert.equal(typed<Float32Array>(out.scales)[t], kept);
          const inverse = kept ? Math.fround(1 / kept) : 0;
          for (const [i, value] of token.entries()) {
            const ratio = Math.min(Math.max(Math.fround(value * inverse), -top), top);
            const want = dtype === 'i8' ? round(ratio) : e4m3(nearest(ratio));
            const got = codes[t * k + i]!;
            assert.equal((dtype === 'i8' ? got : e4m3(got)) + 0, want + 0);
          }
        }
      },
    ),
    { numRuns: 60 },
  );
});

test('quantizeTokens refuses what is no number, and dtypes that are no codes', async () => {
  for (const bad of [Number.NaN, Number.POSITIVE_INFINITY]) {
    const x = fromTyped('f32', [1, 2], Float32Array.of(1, bad));
    ops.quantizeTokens(rt, x, { codes: allocate('i8', [1, 2]), scales: allocate('f32', [1]) });
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_NUMERICS' });
  }
  const x = fromTyped('f32', [1, 2], Float32Array.of(1, 2));
  ops.quantizeTokens(rt, x, { codes: allocate('u8', [1, 2]), scales: allocate('f32', [1]) });
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT' });
});

const bytes = (length: number, seed: number, low: number, high: number): Int8Array => {
  let state = seed >>> 0;
  return Int8Array.from({ length }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return low + ((state >>> 12) % (high - low + 1));
  });
};
const scalesOf = (length: number, seed: number): Float32Array =>
  Float32Array.from(bytes(length, seed, 1, 100), (v) => Math.fround(v / 3000));

/** The nibble of (n, k): the low ones of a word's bytes are four columns, the high ones those 16 further. */
function cometWords(w: Int8Array, n: number, k: number): Uint8Array {
  const [rows, blocks] = [Math.ceil(n / 16), Math.ceil(k / 128)];
  const words = new Uint8Array(rows * blocks * 1024);
  for (let r = 0; r < n; r++)
    for (let i = 0; i < k; i++) {
      const [chunk, quad, high] = [(i % 128) >> 5, (i % 16) >> 2, (i % 32) >> 4];
      const word = 128 * (chunk >> 1) + 4 * (4 * (r % 8) + quad) + 2 * (chunk & 1) + ((r % 16) >> 3);
      words[((r >> 4) * blocks + (i >> 7)) * 1024 + 4 * word + (i % 4)]! |= (w[r * k + i]! & 15) << (4 * high);
    }
  return words;
}

test('gemmAct: 8-bit integers are exact sums, scaled once', async () => {
  const [m, n, k] = [3, 5, 176];
  const [x, w] = [bytes(m * k, 1, -127, 127), bytes(n * k, 2, -128, 127)];
  const [sx, sw] = [scalesOf(m, 3), scalesOf(n, 4)];
  const bias = scalesOf(n, 5);
  const y = allocate('f32', [m, n]);
  const codes = { codes: fromTyped('i8', [m, k], x), scales: fromTyped('f32', [m], sx) };
  const weights = { codes: fromTyped('i8', [n, k], w), scales: fromTyped('f32', [n], sw) };
  ops.gemmAct(rt, codes, weights, fromTyped('f32', [n], bias), y);
  await rt.sync();
  for (let t = 0; t < m; t++)
    for (let r = 0; r < n; r++) {
      let sum = 0n;
      for (let i = 0; i < k; i++) sum += BigInt(x[t * k + i]! * w[r * k + i]!);
      const scaled = Math.fround(Math.fround(Number(sum)) * Math.fround(sx[t]! * sw[r]!));
      assert.equal(typed<Float32Array>(y)[t * n + r], Math.fround(scaled + bias[r]!));
    }
});

test('gemmAct: e4m3 in fp32 after every 128 columns, 4-bit weights group by group', async () => {
  const [m, n, k] = [2, 19, 256];
  const x8 = Uint8Array.from(bytes(m * k, 6, -120, 120), (v) => v & 0xff).map((v) => ((v & 127) === 127 ? v ^ 1 : v));
  const w8 = Uint8Array.from(bytes(n * k, 7, -120, 120), (v) => v & 0xff).map((v) => ((v & 127) === 127 ? v ^ 1 : v));
  const [sx, sw] = [scalesOf(m, 8), scalesOf(n, 9)];
  const y = allocate('f32', [m, n]);
  const codes = { codes: fromTyped('f8_e4m3', [m, k], x8), scales: fromTyped('f32', [m], sx) };
  ops.gemmAct(rt, codes, { codes: fromTyped('f8_e4m3', [n, k], w8), scales: fromTyped('f32', [n], sw) }, undefined, y);
  await rt.sync();
  for (let t = 0; t < m; t++)
    for (let r = 0; r < n; r++) {
      let sum = 0;
      for (let b = 0; b < k; b += 128) {
        let part = 0;
        for (let i = b; i < b + 128; i++) part += e4m3(x8[t * k + i]!) * e4m3(w8[r * k + i]!);
        sum = Math.fround(sum + Math.fround(part));
      }
      assert.equal(typed<Float32Array>(y)[t * n + r], Math.fround(sum * Math.fround(sx[t]! * sw[r]!)));
    }

  const [x, w] = [bytes(m * k, 10, -127, 127), bytes(n * k, 11, -8, 7)];
  const words = cometWords(w, n, k);
  const groups = scalesOf(2 * 20, 12);
  const packed = { codes: fromTyped('u8', [2, 2, 1024], words), scales: fromTyped('f32', [2, 20], groups) };
  ops.gemmAct(rt, { codes: fromTyped('i8', [m, k], x), scales: fromTyped('f32', [m], sx) }, packed, undefined, y);
  await rt.sync();
  for (let t = 0; t < m; t++)
    for (let r = 0; r < n; r++) {
      let sum = 0;
      for (let b = 0; b < 2; b++) {
        let part = 0;
        for (let i = b * 128; i < b * 128 + 128; i++) part += x[t * k + i]! * w[r * k + i]!;
        sum = Math.fround(part * groups[b * 20 + r]! + sum); // an fma: the product of 21 and 24 bits is exact in double
      }
      assert.equal(typed<Float32Array>(y)[t * n + r], Math.fround(sum * sx[t]!));
    }

  // The same weights times e4m3: exact sums of 128, rounded to fp32, in the fp32 chain of groups.
  ops.gemmAct(rt, codes, packed, undefined, y);
  await rt.sync();
  for (let t = 0; t < m; t++)
    for (let r = 0; r < n; r++) {
      let sum = 0;
      for (let b = 0; b < 2; b++) {
        let part = 0;
        for (let i = b * 128; i < b * 128 + 128; i++) part += e4m3(x8[t * k + i]!) * w[r * k + i]!;
        sum = Math.fround(Math.fround(part) * groups[b * 20 + r]! + sum); // an fma: the product of 24 and 24 bits is exact in double
      }
      assert.equal(typed<Float32Array>(y)[t * n + r], Math.fround(sum * sx[t]!));
    }
});

test('gemmAct: 4-bit weights of one scale a row, and of two levels, are exact sums', async () => {
  const [m, n, k] = [3, 21, 208];
  const [x, w] = [bytes(m * k, 20, -127, 127), bytes(n * k, 21, -8, 7)];
  const [sx, sw] = [scalesOf(m, 22), scalesOf(n, 23)];
  const factors = bytes(2 * 32, 24, -15, 16);
  const codes = { codes: fromTyped('i8', [m, k], x), scales: fromTyped('f32', [m], sx) };
  const words = fromTyped('u8', [2, 2, 1024], cometWords(w, n, k));
  const scales = fromTyped('f32', [n], sw);
  for (const groups of [undefined, fromTyped('i8', [2, 32], factors)]) {
    const y = allocate('f32', [m, n]);
    ops.gemmAct(rt, codes, { codes: words, scales, groups }, undefined, y);
    await rt.sync();
    for (let t = 0; t < m; t++)
      for (let r = 0; r < n; r++) {
        let sum = 0;
        for (let i = 0; i < k; i++) sum += x[t * k + i]! * w[r * k + i]! * (groups ? factors[(i >> 7) * 32 + r]! : 1);
        assert.equal(
          typed<Float32Array>(y)[t * n + r],
          Math.fround(Math.fround(sum) * Math.fround(sx[t]! * sw[r]!)),
          `${t} ${r}`,
        );
      }
  }
  factors[40] = 17;
  ops.gemmAct(
    rt,
    codes,
    { codes: words, scales, groups: fromTyped('i8', [2, 32], factors) },
    undefined,
    allocate('f32', [m, n]),
  );
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', message: /17 for row 8 and group 1/ });
});

test('gemmAct refuses shapes and dtypes that do not fit', async () => {
  const x = { codes: allocate('i8', [2, 32]), scales: allocate('f32', [2]) };
  const refused = async (w: Parameters<typeof ops.gemmAct>[2], y = allocate('f32', [2, 4])): Promise<void> => {
    ops.gemmAct(rt, x, w, undefined, y);
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT' });
  };
  await refused({ codes: allocate('f8_e4m3', [4, 32]), scales: allocate('f32', [4]) });
  await refused({ codes: allocate('i8', [4, 16]), scales: allocate('f32', [4]) });
  await refused({ codes: allocate('i8', [4, 32]), scales: allocate('f32', [3]) });
  await refused({ codes: allocate('u8', [1, 2, 1024]), scales: allocate('f32', [1, 4]) });
  const words = allocate('u8', [1, 1, 1024]);
  await refused({ codes: words, scales: allocate('f32', [1, 4]), groups: allocate('i8', [1, 16]) });
  await refused({ codes: words, scales: allocate('f32', [4]), groups: allocate('i8', [1, 8]) });
  await refused({ codes: allocate('i8', [4, 32]), scales: allocate('f32', [4]), groups: allocate('i8', [1, 16]) });
  await refused({ codes: allocate('i8', [4, 32]), scales: allocate('f32', [4]) }, allocate('f64', [2, 4]));
});
