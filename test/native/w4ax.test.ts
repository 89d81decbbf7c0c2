import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { fromTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { isFailure, onDevice, rt } from './runtime-under-test.js';
import { decodeF16, expectClose, f32, i32, poisoned, Random, typed, U32 } from './support.js';

const codes8 = (count: number, random: Random, low: number, high: number) =>
  Int8Array.from({ length: count }, () => random.integer(low, high));
const u8 = (data: readonly number[]) => fromTyped('u8', [data.length], Uint8Array.from(data));

/** Products of such codes on a device are those of comet.test.ts. */
const skip = onDevice && 'a device has another operation';

test('gemm_w4ax: BigInt sums of each block, rescaled in the stated order, bit for bit', { skip }, async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.integer({ min: 0, max: 40 }),
      fc.integer({ min: 1, max: 11 }),
      fc.integer({ min: 1, max: 4 }),
      fc.boolean(),
      fc.boolean(),
      fc.nat(),
      async (t, n, blocks, hasBias, accumulate, seed) => {
        const random = new Random(seed);
        const k = 128 * blocks;
        const [x, w] = [codes8(t * k, random, -127, 127), codes8(n * k, random, -128, 127)];
        const [sx, sw] = [random.normals(t * blocks), random.normals(n * blocks, 0.1)];
        const [bias, start] = [random.normals(n), random.normals(t * n)];
        const y = fromTyped('f32', [t, n], start);
        ops.gemmW4ax(
          rt,
          { codes: fromTyped('i8', [t, k], x), scales: f32([t, blocks], sx) },
          { codes: fromTyped('i8', [n, k], w), scales: f32([n, blocks], sw) },
          hasBias ? f32([n], bias) : undefined,
          y,
          { accumulate },
        );
        await rt.sync();
        const got = typed(y);
        for (let i = 0; i < t; i++)
          for (let j = 0; j < n; j++) {
            let sum = 0;
            for (let b = 0; b < blocks; b++) {
              let part = 0n;
              for (let c = b * 128; c < (b + 1) * 128; c++)
                part += BigInt(x[i * k + c] as number) * BigInt(w[j * k + c] as number);
              const scale = Math.fround((sx[i * blocks + b] as number) * (sw[j * blocks + b] as number));
              // part < 2^24 and scale have 24 bits each: their product and its sum with an f32 of a like size are exact in
              // f64 but for bits far below f32's last one, so that rounding to f32 once is the fma's.
              sum = Math.fround(Number(part) * scale + sum);
            }
            const before = Math.fround(
              (accumulate ? (start[i * n + j] as number) : 0) + (hasBias ? (bias[j] as number) : 0),
            );
            assert.equal(got[i * n + j], Math.fround(before + sum), `[${i}][${j}]`);
          }
      },
    ),
    { numRuns: 60 },
  );
});

test('gemm_w4ax: the largest sums are exact', { skip }, async () => {
  const k = 128;
  const y = poisoned('f32', [1, 2]);
  const w = new Int8Array(2 * k).fill(-128);
  w.fill(127, k);
  ops.gemmW4ax(
    rt,
    { codes: fromTyped('i8', [1, k], new Int8Array(k).fill(127)), scales: f32([1, 1], Float32Array.of(1)) },
    { codes: fromTyped('i8', [2, k], w), scales: f32([2, 1], Float32Array.of(1, 1)) },
    undefined,
    y,
  );
  await rt.sync();
  assert.deepEqual([...typed(y)], [-128 * 127 * 128, 127 * 127 * 128]);
});

/** Round to nearest even of a double, from its definition. */
function even(value: number): number {
  const low = Math.floor(value);
  const rest = value - low;
  return rest < 0.5 || (rest === 0.5 && low % 2 === 0) ? low : low + 1;
}

test('quantize_activations: the grid of ops.ts, token by token and block by block', async () => {
  const random = new Random(3);
  const [t, blocks] = [9, 3];
  const k = 128 * blocks;
  const x = random.normals(t * k, 5);
  x.fill(0, 0, 128); // a block of zeros
  x.fill(2 ** -140, k, k + 128); // one too small for a scale
  x.set([3.5, -3.5, 2.5, -7], 2 * k + 128); // ties
  for (let c = 4; c < 128; c++) x[2 * k + 128 + c] = 0;
  const bits = [4, 4, 8];
  const clip = Float32Array.of(1, 1, 0.8);
  const order = Array.from({ length: k }, (_, j) => (c(j) * 128 + (j % 128)) % k);
  function c(j: number): number {
    return [0, 1, 2][Math.floor(j / 128)] as number;
  }
  const codes = poisoned('i8', [t, k]);
  const scales = poisoned('f32', [t, blocks]);
  ops.quantizeActivations(
    rt,
    f32([t, k], x),
    { bits: u8(bits), clip: f32([blocks], clip), order: i32(order) },
    { codes, scales },
  );
  const back = poisoned('f32', [t, k]);
  ops.dequantizeActivations(rt, { codes, scales }, back);
  await rt.sync();
  const [gotCodes, gotScales, values] = [typed<Int8Array>(codes), typed(scales), typed(back)];
  for (let i = 0; i < t; i++)
    for (let b = 0; b < blocks; b++) {
      const top = bits[b] === 4 ? 7 : 127;
      const row = Array.from({ length: 128 }, (_, j) => x[i * k + (order[b * 128 + j] as number)] as number);
      const most = Math.max(...row.map(Math.abs));
      const raw = Math.fround(most * Math.fround((clip[b] as number) / top));
      const scale = raw < 2 ** -126 ? 0 : raw;
      assert.equal(gotScales[i * blocks + b], scale);
      const inverse = scale > 0 ? Math.fround(1 / scale) : 0;
      row.forEach((value, j) => {
        const want = Math.max(-top, Math.min(top, even(Math.max(-top, Math.min(top, Math.fround(value * inverse))))));
        assert.equal(gotCodes[i * k + b * 128 + j], want === 0 ? 0 : want, `[${i}] block ${b} [${j}] ${value}`);
        assert.equal(values[i * k + b * 128 + j], Math.fround(want * scale) + 0);
      });
    }
});

test('what is not finite, or no grid, or out of range is refused', async () => {
  const out = () => ({ codes: poisoned('i8', [1, 128]), scales: poisoned('f32', [1, 1]) });
  const tables = { bits: u8([4]), clip: f32([1], Float32Array.of(1)) };
  // A device has one fault for all that is wrong with what it reads.
  const ofTables = onDevice ? 'LPQ_NATIVE_NUMERICS' : 'LPQ_NATIVE_ARGUMENT';
  const one = (value: number) => f32([1, 128], new Float32Array(128).fill(1).fill(value, 5, 6));
  const fails = async (enqueue: () => void, code: string, detail: RegExp) => {
    enqueue();
    await assert.rejects(rt.sync(), (error: Error & { code?: string }) => isFailure(error, code, detail));
  };
  for (const value of [Number.NaN, Number.POSITIVE_INFINITY])
    await fails(() => ops.quantizeActivations(rt, one(value), tables, out()), 'LPQ_NATIVE_NUMERICS', /NaN or infinity/);
  await fails(() => ops.quantizeActivations(rt, one(1), { ...tables, bits: u8([5]) }, out()), ofTables, /bits holds 5/);
  await fails(
    () => ops.quantizeActivations(rt, one(1), { ...tables, order: i32(Array.from({ length: 128 }, () => 128)) }, out()),
    ofTables,
    /order holds 128/,
  );
  await fails(
    () => ops.quantizeActivations(rt, f32([1, 100], new Float32Array(100)), tables, out()),
    'LPQ_NATIVE_ARGUMENT',
    /100 columns/,
  );
});

test('choices and runs that are none are refused', async () => {
  const errors = (choices: { bits: number[]; clips: number[] }) =>
    ops.blockErrors(
      rt,
      f32([1, 128], new Float32Array(128)),
      f32([128], new Float32Array(128)),
      i32(Array.from({ length: 128 }, (_, j) => j)),
      poisoned('f64', [1, Math.max(1, choices.bits.length)]),
      choices,
    );
  const kv = (starts: number[], p: { bits: number; group: number }) =>
    ops.simulateKv(rt, f32([4, 2], new Float32Array(8)), i32(starts), poisoned('f32', [4, 2]), p);
  const cases: [() => void, RegExp][] = [
    [() => errors({ bits: [5], clips: [1] }), /bits holds 5/],
    [() => errors({ bits: [4, 8], clips: [1] }), /differ in length/],
    [() => errors({ bits: new Array(17).fill(4), clips: new Array(17).fill(1) }), /17 choices, not 1 to 16/],
    [() => kv([0, 4], { bits: 9, group: 2 }), /bits is 9, not 1 to 8/],
    [() => kv([0, 4], { bits: 4, group: 0 }), /group is 0/],
    [() => kv([0, 3], { bits: 4, group: 2 }), /starts do not cover x/],
  ];
  for (const [enqueue, words] of cases) {
    enqueue();
    await assert.rejects(rt.sync(), (error: Error & { code?: string }) =>
      isFailure(error, 'LPQ_NATIVE_ARGUMENT', words),
    );
  }
});

test('block_errors: the squared errors of every choice, weighted', async () => {
  const random = new Random(5);
  const [t, k] = [17, 256];
  const x = random.normals(t * k, 2);
  const weight = random.normals(k).map(Math.abs);
  const order = Array.from({ length: k }, (_, j) => (j * 77) % k);
  const choices = { bits: [4, 4, 8], clips: [1, 0.8, 1] };
  const errors = poisoned('f64', [2, 3]);
  ops.blockErrors(rt, f32([t, k], x), f32([k], weight), i32(order), errors, choices);
  await rt.sync();
  const want = new Float64Array(6);
  for (let b = 0; b < 2; b++)
    for (let i = 0; i < t; i++) {
      const channels = order.slice(b * 128, (b + 1) * 128);
      const most = Math.max(...channels.map((c) => Math.abs(x[i * k + c] as number)));
      choices.bits.forEach((bits, choice) => {
        const top = bits === 4 ? 7 : 127;
        const scale = Math.fround(most * Math.fround(Math.fround(choices.clips[choice] as number) / top));
        const inverse = Math.fround(1 / scale);
        for (const c of channels) {
          const value = x[i * k + c] as number;
          const code = even(Math.max(-top, Math.min(top, Math.fround(value * inverse))));
          want[b * 3 + choice] = (want[b * 3 + choice] as number) + (weight[c] as number) * (code * scale - value) ** 2;
        }
      });
    }
  // Each term has some 4 roundings of f32; the code's product with the scale loses up to 127 of them against the error.
  expectClose('errors', typed<Float64Array>(errors), want, (i) => (want[i] as number) * 2 ** 12 * U32);
});

test('simulate_kv: each channel of each run of tokens within half a step of f16 numbers', async () => {
  const random = new Random(9);
  const [t, width] = [50, 24];
  const x = random.normals(t * width, 3);
  const starts = [0, 33, 33, 50];
  const y = poisoned('f32', [t, width]);
  ops.simulateKv(rt, f32([t, width], x), i32(starts), y, { bits: 4, group: 16 });
  await rt.sync();
  const got = typed(y);
  for (let s = 0; s + 1 < starts.length; s++)
    for (let first = starts[s] as number; first < (starts[s + 1] as number); first += 16)
      for (let c = 0; c < width; c++) {
        const tokens = Array.from(
          { length: Math.min(16, (starts[s + 1] as number) - first) },
          (_, i) => (first + i) * width + c,
        );
        const run = tokens.map((at) => x[at] as number);
        const [low, high] = [Math.min(...run), Math.max(...run)];
        // Rounding zero and scale to f16 moves the ends by 2^-11 of them, 15 steps away at most.
        const bound = ((high - low) / 15) * 0.5 + (Math.abs(low) + 2 * (high - low)) * 2 ** -10;
        for (const at of tokens) assert.ok(Math.abs((got[at] as number) - (x[at] as number)) <= bound, `${at}`);
        assert.ok(new Set(tokens.map((at) => got[at])).size <= 16);
      }
  assert.equal(decodeF16(0x3c00), 1);
});

test('simulate_kv with clips: the best of eight ranges, channel by channel', async () => {
  const random = new Random(11);
  const [t, width, group] = [40, 8, 16];
  const x = random.normals(t * width, 3);
  for (let i = 0; i < width; i++) x[i * width + i] = Math.fround(12 + i); // what a clip is for
  const y = poisoned('f32', [t, width]);
  ops.simulateKv(rt, f32([t, width], x), i32([0, t]), y, { bits: 4, group, clip: true });
  await rt.sync();
  const got = typed(y);
  // Normal numbers of f16.
  const half = (value: number): number => {
    const step = 2 ** (Math.floor(Math.log2(Math.abs(value))) - 10);
    return even(value / step) * step;
  };
  let drawn = 0;
  for (let first = 0; first < t; first += group)
    for (let c = 0; c < width; c++) {
      const places = Array.from({ length: Math.min(group, t - first) }, (_, i) => (first + i) * width + c);
      const run = places.map((at) => x[at] as number);
      const [low, high] = [Math.min(...run), Math.max(...run)];
      const range = Math.fround(high - low);
      let [least, choice, best] = [Number.POSITIVE_INFINITY, 0, run];
      for (let i = 0; i < 8; i++) {
        const inside = Math.fround(Math.fround(Math.fround(0.025) * i) * range);
        const zero = half(Math.fround(low + inside));
        const scale = half(Math.fround(Math.fround(Math.fround(high - inside) - zero) / 15));
        const inverse = Math.fround(1 / scale);
        const values = run.map((value) => {
          const ratio = Math.fround(Math.fround(value - zero) * inverse);
          return Math.fround(even(Math.min(Math.max(ratio, 0), 15)) * scale + zero);
        });
        const error = values.reduce((sum, value, j) => sum + (value - (run[j] as number)) ** 2, 0);
        if (error < least) [least, choice, best] = [error, i, values];
      }
      if (choice > 0) drawn++;
      assert.deepEqual(
        places.map((at) => got[at]),
        best,
      );
    }
  assert.ok(drawn > 3);
});

test('channel_statistics and gather_columns', async () => {
  const x = f32([2, 3], Float32Array.of(1, -5, 2, -3, 4, 0));
  const [most, moments]: [Tensor, Tensor] = [
    f32([3], Float32Array.of(0, 9, 0)),
    fromTyped('f64', [3], new Float64Array(3)),
  ];
  const y = poisoned('f32', [2, 3]);
  ops.channelStatistics(rt, x, most, moments);
  ops.gatherColumns(rt, x, i32([2, 0, 1]), y);
  await rt.sync();
  assert.deepEqual([...typed(most)], [3, 9, 2]);
  assert.deepEqual([...typed<Float64Array>(moments)], [10, 41, 4]);
  assert.deepEqual([...typed(y)], [2, 1, -5, 0, -3, 4]);
});
