import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { allocate, createRuntime, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import {
  compare,
  convertExact,
  decodeParameters,
  decodeStream,
  decodeTiles,
  decodeZeros,
  settle,
} from '../../../src/verify/native.js';
import { marlinScales, marlinWords } from './layouts.js';
import { bitstream, half, random } from './numbers.js';

const decodeGptq = decodeStream('gptq');
const decodeCompressedTensors = decodeStream('ct');
const runtime = createRuntime(2);
const words = (shape: [number, number], ...values: number[]): Tensor =>
  fromTyped('i32', shape, Uint32Array.from(values));

/** Values of a canonical code stream. */
function values(stream: Tensor, k: number, bits: number): number[] {
  const bytes = stream.bytes();
  const rowBytes = stream.shape[1] as number;
  return Array.from({ length: (stream.shape[0] as number) * k }, (_, at) => {
    let value = 0;
    for (let b = 0; b < bits; b++) {
      const bit = (at % k) * bits + b;
      value |= ((bytes[Math.floor(at / k) * rowBytes + (bit >> 3)]! >> (bit & 7)) & 1) << b;
    }
    return value;
  });
}

test('GPTQ: 4-bit values 1..8 are the word 0x87654321', async () => {
  const got = decodeGptq(runtime, words([1, 1], 0x87654321), { bits: 4, n: 1, k: 8, flip: 0 });
  await settle(runtime);
  assert.deepEqual(values(got.output, 8, 4), [1, 2, 3, 4, 5, 6, 7, 8]);
  assert.equal(got.wrong().count, 0);
});

test('GPTQ: 3-bit i mod 8 for 32 values are the words 0x88fac688 0xc688fac6 0xfac688fa', async () => {
  const packed = words([3, 1], 0x88fac688, 0xc688fac6, 0xfac688fa);
  const got = decodeGptq(runtime, packed, { bits: 3, n: 1, k: 32, flip: 0 });
  await settle(runtime);
  assert.deepEqual(
    values(got.output, 32, 3),
    Array.from({ length: 32 }, (_, i) => i % 8),
  );
});

for (const [bits, v1, v2] of [
  [2, [0x55555555], [0xaaaaaaaa]],
  [3, [0xdb6db6db, 0xb6db6db6, 0x6db6db6d], [0x24924924, 0x49249249, 0x92492492]],
  [4, [0x77777777], [0x88888888]],
  [8, [0x7f7f7f7f], [0x80808080]],
] as const)
  test(`GPTQ: symmetric ${bits}-bit zero words, v1 and v2`, async () => {
    const n = (v1.length * 32) / bits;
    for (const [stored, add] of [
      [v1, 1],
      [v2, 0],
    ] as const) {
      const p = { bits, add, bias: 0, down: false };
      const got = decodeZeros(runtime, words([1, stored.length], ...stored), [n, 1], 'u8', p);
      await settle(runtime);
      assert.deepEqual([...typed<Uint8Array>(got.output)], new Array(n).fill(2 ** (bits - 1)));
    }
  });

test('GPTQ v1: a zero point of 0 is stored as -1 in its own field', async () => {
  const got = decodeZeros(runtime, words([1, 1], 0xffff_fff7), [8, 1], 'u8', { bits: 4, add: 1, bias: 0, down: false });
  await settle(runtime);
  assert.deepEqual([...typed<Uint8Array>(got.output)], [8, 0, 0, 0, 0, 0, 0, 0]);
});

test('MARLIN: W[k][n] = k puts 0x91918080 in lane 0 and 0xb3b3a2a2 in lane 1', async () => {
  const lanes = [0x91918080, 0xb3b3a2a2, 0xd5d5c4c4, 0xf7f7e6e6];
  const tile = Array.from({ length: 128 }, (_, word) => lanes[Math.floor(word / 4) % 4]!);
  const got = decodeTiles(runtime, 'marlin', words([1, 128], ...tile), {
    bits: 4,
    n: 64,
    k: 16,
    np: 64,
    kp: 16,
    flip: 0,
    pad: 8,
  });
  await settle(runtime);
  assert.deepEqual(
    values(got.output, 16, 4),
    Array.from({ length: 64 * 16 }, (_, i) => i % 16),
  );
  assert.deepEqual(
    [...marlinWords(64, 16, (_, k) => k)].map((word) => word >>> 0),
    tile,
  );
});

test('MARLIN: any shape reads back from the closed form, signed or not, with 1 thread and with 3', async () => {
  const three = createRuntime(3);
  const one = createRuntime(1);
  const sizes = { n: fc.integer({ min: 1, max: 200 }), k: fc.integer({ min: 1, max: 200 }) };
  await fc.assert(
    fc.asyncProperty(fc.record({ ...sizes, seed: fc.nat(), signed: fc.boolean() }), async ({ n, k, seed, signed }) => {
      const next = random(seed + 1);
      const [np, kp] = [Math.ceil(n / 64) * 64, Math.ceil(k / 16) * 16];
      const codes = Uint8Array.from({ length: n * k }, () => (next() >>> 9) % 16);
      const flip = signed ? 8 : 0;
      const packed = marlinWords(np, kp, (row, i) => (row < n && i < k ? codes[row * k + i]! ^ flip : 8));
      for (const rt of [three, one]) {
        const got = decodeTiles(rt, 'marlin', fromTyped('i32', [kp / 16, 2 * np], packed), {
          bits: 4,
          n,
          k,
          np,
          kp,
          flip,
          pad: 8,
        });
        await settle(rt);
        assert.deepEqual(
          got.output.bytes(),
          bitstream(n, k, 4, 8, (row, i) => codes[row * k + i]!),
        );
        assert.equal(got.wrong().count, 0);
      }
    }),
    { numRuns: 30 },
  );
});

test('MARLIN: every bit of every word is one bit of the codes, or of the padding', async () => {
  const [n, k, np, kp] = [50, 100, 64, 128];
  const next = random(77);
  const codes = Uint8Array.from({ length: n * k }, () => (next() >>> 9) % 16);
  const expected = bitstream(n, k, 4, 8, (row, i) => codes[row * k + i]!);
  const packed = fromTyped(
    'i32',
    [kp / 16, 2 * np],
    marlinWords(np, kp, (r, i) => (r < n && i < k ? codes[r * k + i]! : 8)),
  );
  const bytes = packed.bytes();
  let padding = 0;
  for (let bit = 0; bit < bytes.length * 8; bit++) {
    bytes[bit >> 3]! ^= 1 << (bit & 7);
    const got = decodeTiles(runtime, 'marlin', packed, { bits: 4, n, k, np, kp, flip: 0, pad: 8 });
    await settle(runtime);
    bytes[bit >> 3]! ^= 1 << (bit & 7);
    const { count } = got.wrong();
    padding += count;
    assert.equal(Buffer.compare(got.output.bytes(), expected) === 0, count === 1, `bit ${bit}`);
    got.output.dispose();
  }
  assert.equal(padding, 4 * (np * kp - n * k));
});

test('MARLIN scales: grouped and per channel read back; a scale in the padding is seen', async () => {
  for (const groups of [1, 2, 5]) {
    const [n, np] = [90, 256];
    const scale = (row: number, g: number) => (row < n ? 0x2000 + 7 * row + g : 0);
    const packed = fromTyped('f16', [groups, np], marlinScales(np, groups, scale));
    const good = decodeParameters(runtime, 'marlin_scales', packed, 'f16', [n, groups], { bits: 16, np, gp: groups });
    await settle(runtime);
    assert.equal(good.wrong().count, 0);
    const got = typed<Uint16Array>(good.output);
    for (let row = 0; row < n; row++)
      for (let g = 0; g < groups; g++) assert.equal(got[row * groups + g], scale(row, g), `row ${row}, group ${g}`);
    typed<Uint16Array>(packed)[groups * np - 1] = 1;
    const bad = decodeParameters(runtime, 'marlin_scales', packed, 'f16', [n, groups], { bits: 16, np, gp: groups });
    await settle(runtime);
    const { count, row, column } = bad.wrong();
    assert.deepEqual([count, row, column], [1, 255, groups - 1]);
  }
});

test('streams of any width read back; bits behind the last value are seen', async () => {
  const shape = {
    bits: fc.integer({ min: 1, max: 8 }),
    n: fc.integer({ min: 1, max: 40 }),
    k: fc.integer({ min: 1, max: 70 }),
  };
  await fc.assert(
    fc.asyncProperty(fc.record({ ...shape, seed: fc.nat() }), async ({ bits, n, k, seed }) => {
      const next = random(seed + 1);
      const codes = Uint8Array.from({ length: n * k }, () => (next() >>> 9) % 2 ** bits);
      const at = (row: number, i: number) => codes[row * k + i]!;
      const rows = fromTyped('i32', [n, Math.ceil((k * bits) / 32)], bitstream(n, k, bits, 32, at));
      const good = decodeCompressedTensors(runtime, rows, { bits, n, k, flip: 0 });
      await settle(runtime);
      assert.deepEqual(good.output.bytes(), bitstream(n, k, bits, 8, at));
      assert.equal(good.wrong().count, 0);
      if ((k * bits) % 32 === 0) return;
      rows.bytes()[rows.byteLength - 1]! |= 0x80;
      const bad = decodeCompressedTensors(runtime, rows, { bits, n, k, flip: 0 });
      await settle(runtime);
      const { count, row, column } = bad.wrong();
      assert.deepEqual([count, row, column], [1, n - 1, k]);
    }),
    { numRuns: 60 },
  );
});

test('fp16 widens exactly, and a wider scale counts only when fp16 or bf16 holds it', async () => {
  const all = fromTyped(
    'f16',
    [256, 256],
    Uint16Array.from({ length: 65536 }, (_, i) => i),
  );
  const wide = convertExact(runtime, all, 'f32');
  await settle(runtime);
  const got = typed(wide.output);
  for (let i = 0; i < 65536; i++)
    if ((i & 0x7c00) !== 0x7c00) assert.ok(Object.is(got[i], half(i)), `0x${i.toString(16)}: ${got[i]}`);
  assert.equal(wide.wrong().count, 2 * 1023); // the NaNs
  const back = convertExact(runtime, wide.output, 'f16');
  await settle(runtime);
  const patterns = typed<Uint16Array>(back.output);
  for (let i = 0; i < 65536; i++) if ((i & 0x7c00) !== 0x7c00) assert.equal(patterns[i], i);
  const bf = convertExact(runtime, fromTyped('f16', [1, 2], Uint16Array.of(0x3c00, 0x3c01)), 'bf16');
  await settle(runtime);
  assert.deepEqual({ ...bf.wrong() }, { count: 1, row: 0, column: 1, got: 0x3c01, expected: 0 });
});

test('compare names the first difference of any element width', async () => {
  const a = allocate('u8', [3, 7]);
  a.bytes().fill(0);
  const b = fromTyped('u8', [3, 7], a.bytes());
  b.bytes()[9] = 0b0100_0000; // row 1, bit 22: 5-bit element 4, 16-bit element 1
  b.bytes()[20] = 1;
  const five = await compare(runtime, a, b, { rows: 3, bits: 5 });
  assert.deepEqual({ ...five }, { count: 2, row: 1, column: 4, got: 0, expected: 4 });
});

test('words of whole codes (compressed-tensors before 0.13): any bits, and no bit beside the codes goes unseen', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.record({
        bits: fc.integer({ min: 1, max: 8 }),
        n: fc.integer({ min: 1, max: 20 }),
        k: fc.integer({ min: 1, max: 70 }),
        seed: fc.nat(),
      }),
      async ({ bits, n, k, seed }) => {
        const next = random(seed + 1);
        const perWord = Math.floor(32 / bits);
        const count = Math.ceil(k / perWord);
        const codes = Uint8Array.from({ length: n * k }, () => (next() >>> 9) % 2 ** bits);
        const data = new Int32Array(n * count);
        codes.forEach((code, i) => {
          const at = Math.floor(i / k) * count + Math.floor((i % k) / perWord);
          data[at] = data[at]! | (code << (((i % k) % perWord) * bits));
        });
        const rows = words([n, count], ...data);
        const shape = { bits, n, k, flip: 0, perWord };
        const good = decodeCompressedTensors(runtime, rows, shape);
        // The same words one row down: zero points of k rows in n groups.
        const down = new Int32Array(n * count).map((_, i) => data[(i % n) * count + Math.floor(i / n)]!);
        const p = { bits, add: 0, bias: 0, down: true, perWord };
        const zeros = decodeZeros(runtime, words([count, n], ...down), [k, n], 'u8', p);
        await settle(runtime);
        assert.deepEqual(
          good.output.bytes(),
          bitstream(n, k, bits, 8, (row, i) => codes[row * k + i]!),
        );
        assert.equal(good.wrong().count, 0);
        assert.equal(zeros.wrong().count, 0);
        assert.deepEqual(
          [...zeros.output.bytes()],
          Array.from({ length: n * k }, (_, i) => codes[(i % n) * k + Math.floor(i / n)]),
        );
        const row = next() % n;
        const word = next() % count;
        const used = Math.min(perWord, k - word * perWord) * bits;
        if (used === 32) return;
        const bit = used + (next() % (32 - used));
        const bytes = rows.bytes();
        const at = (row * count + word) * 4 + (bit >> 3);
        bytes[at] = bytes[at]! ^ (1 << (bit & 7));
        const bad = decodeCompressedTensors(runtime, rows, shape);
        await settle(runtime);
        const wrong = bad.wrong();
        assert.deepEqual([wrong.count, wrong.row], [1, row], `${bits} bits, bit ${bit} of word ${word} of ${count}`);
      },
    ),
    { numRuns: 200 },
  );
});
