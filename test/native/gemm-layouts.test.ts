import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, fromTyped, type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { decodeCode, quantType, typeParams } from '../../src/core/quant-type.js';
import { pack } from '../../src/layout/engine.js';
import { marlinScales, marlinWeight, marlinZeros } from '../../src/pack/layouts/marlin.js';
import { turbomindScales, turbomindWeight } from '../../src/pack/layouts/turbomind.js';
import { Random } from './support.js';

// gemm_marlin and gemm_turbomind of the CPU, which know the formats by their closed forms, multiply what the layout engine packed
// by its declarations; the products are those of the same numbers in f64.

const rt = createRuntime(2);
const up = (value: number, unit: number) => Math.ceil(value / unit) * unit;

/** f16 bits of a number that it holds. */
function half(value: number): number {
  if (value === 0) return 0;
  const exponent = Math.floor(Math.log2(Math.abs(value)));
  return (value < 0 ? 0x8000 : 0) | ((exponent + 15) << 10) | Math.round((Math.abs(value) / 2 ** exponent - 1) * 1024);
}
function fromHalf(bits: number): number {
  const exponent = (bits >> 10) & 31;
  const size = exponent === 0 ? (bits & 1023) * 2 ** -24 : (1024 + (bits & 1023)) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -size : size;
}
const random16 = (random: Random, count: number) =>
  Float64Array.from({ length: count }, () => random.integer(-64, 64) / 64);

/** Compares y with x W' + bias, W'[n][k] given by `weight`; sums are f32, the result f16. */
function compare(y: Tensor, x: Float64Array, k: number, bias: Float64Array, weight: (n: number, k: number) => number) {
  const [m, n] = y.shape as [number, number];
  const got = typed<Uint16Array>(y);
  for (let j = 0; j < n; j++) {
    const row = Float64Array.from({ length: k }, (_, c) => weight(j, c));
    for (let i = 0; i < m; i++) {
      let [want, size] = [bias[j]!, Math.abs(bias[j]!)];
      for (let c = 0; c < k; c++) {
        want += x[i * k + c]! * row[c]!;
        size += Math.abs(x[i * k + c]! * row[c]!);
      }
      const bound = size * (k + 3) * 2 ** -24 + Math.abs(want) * 2 ** -11 + 2 ** -25;
      assert.ok(
        Math.abs(fromHalf(got[i * n + j]!) - want) <= bound,
        `${i} ${j}: ${fromHalf(got[i * n + j]!)} and ${want}`,
      );
    }
  }
}

async function marlin(bits: 4 | 8, [m, n, k]: readonly [number, number, number], group: number, withZeros: boolean) {
  const random = new Random(bits + n + k + group);
  const [np, kp] = [up(n, 256), up(k, 128)];
  const groups = group === 0 ? 1 : Math.ceil(kp / group);
  const groupOf = (c: number) => (groups === 1 ? 0 : Math.floor(c / group));
  const middle = 2 ** (bits - 1);
  const codes = new Uint8Array(np * kp).fill(middle);
  const zeros = new Uint8Array(np * groups);
  const scales = new Uint16Array(np * groups);
  for (let j = 0; j < n; j++) {
    for (let c = 0; c < k; c++) codes[j * kp + c] = random.integer(0, 2 ** bits - 1);
    for (let g = 0; g < groups; g++) {
      zeros[j * groups + g] = withZeros ? random.integer(0, 2 ** bits - 1) : middle;
      scales[j * groups + g] = half((random.integer(0, 1) ? 1 : -1) * (random.integer(8, 120) / 4096));
    }
  }
  const order = Int32Array.from({ length: k }, (_, c) => (c * 37 + 11) % k); // k odd or free of 37: a permutation
  assert.equal(new Set(order).size, k);
  const w = {
    weights: allocate('i32', [kp / 16, (np * bits) / 2]),
    scales: allocate('f16', [groups, np]),
    ...(withZeros && { zeros: allocate('i32', [groups, (np * bits) / 32]) }),
    ...(withZeros && { permutation: fromTyped('i32', [k], order) }),
  };
  // Codes of four bits are given to the engine two a byte.
  const stream =
    bits === 8
      ? codes
      : Uint8Array.from({ length: codes.length / 2 }, (_, i) => codes[2 * i]! | (codes[2 * i + 1]! << 4));
  pack(rt, marlinWeight(np, kp, bits), fromTyped('u8', [np, (kp * bits) / 8], stream), w.weights, {
    streamColumns: kp,
  });
  pack(rt, marlinScales(np, groups, groups === 1), fromTyped('f16', [np, groups], scales), w.scales);
  if (w.zeros) pack(rt, marlinZeros(np, groups, bits), fromTyped('u8', [np, groups], zeros), w.zeros);
  const x = random16(random, m * k);
  const bias = random16(random, n);
  const y = fromTyped('f16', [m, n], new Uint16Array(m * n).fill(0x7e00));
  const activations = fromTyped('f16', [m, k], Uint16Array.from(x, half));
  ops.gemmMarlin(rt, activations, w, fromTyped('f16', [n], Uint16Array.from(bias, half)), y, {
    bits,
    groupSize: group,
  });
  await rt.sync();
  const gathered = withZeros ? x.map((_, at) => x[at - (at % k) + order[at % k]!]!) : x;
  compare(y, gathered, k, bias, (j, c) => {
    const at = j * groups + groupOf(c);
    return (codes[j * kp + c]! - zeros[at]!) * fromHalf(scales[at]!);
  });
}

test('MARLIN: 4 and 8 bits, groups and whole rows, zero points, an order of columns', async () => {
  for (const bits of [4, 8] as const)
    for (const group of [32, 64, 128, 0])
      for (const withZeros of [false, true]) await marlin(bits, [3, 70, group === 0 ? 256 : 203], group, withZeros);
  await marlin(4, [1, 300, 128], 128, true);
});

async function turbomind(
  typeName: string,
  [m, n, k]: readonly [number, number, number],
  group: number,
  experts: boolean,
) {
  const type = quantType(typeName);
  const bits = type.bits as 4 | 8;
  const random = new Random(bits + n + k + group);
  const np = up(n, 64);
  const groups = k / group;
  const integer = type.kind === 'int';
  const codes = new Uint8Array(np * k);
  const pairs = new Int32Array(np * groups);
  const scales = new Float64Array(np * groups);
  const shifts = new Float64Array(np * groups);
  for (let j = 0; j < n; j++) {
    for (let c = 0; c < k; c++)
      do codes[j * k + c] = random.integer(0, 2 ** bits - 1);
      while (!Number.isFinite(decodeCode(type, codes[j * k + c]!)));
    for (let g = 0; g < groups; g++) {
      const at = j * groups + g;
      const s = half(random.integer(8, 120) / 4096);
      const t = half((-random.integer(0, 1023) / 1024) * 2);
      pairs[at] = s | (t << 16);
      scales[at] = integer || bits === 8 ? fromHalf(s) : 2 ** (random.integer(118, 130) - 127);
      shifts[at] = integer ? fromHalf(t) : 0;
    }
  }
  const stream =
    bits === 8
      ? codes
      : Uint8Array.from({ length: codes.length / 2 }, (_, i) => codes[2 * i]! | (codes[2 * i + 1]! << 4));
  const packed = allocate('i32', [(np * k * bits) / 32]);
  const form = integer ? 'b' : 'a';
  pack(
    rt,
    turbomindWeight(np, k, bits, form, experts ? 'n-major' : 'k-major'),
    fromTyped('u8', [np, (k * bits) / 8], stream),
    packed,
    {
      streamColumns: k,
    },
  );
  const stored = integer ? allocate('f16', [groups, np, 2]) : allocate(bits === 4 ? 'u8' : 'f16', [groups, np]);
  const source = integer
    ? fromTyped('i32', [np, groups], pairs)
    : bits === 4
      ? fromTyped(
          'u8',
          [np, groups],
          Uint8Array.from(scales, (s) => (s === 0 ? 0 : Math.log2(s) + 127)),
        )
      : fromTyped('f16', [np, groups], Uint16Array.from(scales, half));
  pack(rt, turbomindScales(np, groups, integer ? 32 : bits === 4 ? 8 : 16, false), source, stored.view(stored.shape));
  const x = random16(random, m * k);
  const bias = random16(random, n);
  const y = fromTyped('f16', [m, n], new Uint16Array(m * n).fill(0x7e00));
  ops.gemmTurbomind(
    rt,
    fromTyped('f16', [m, k], Uint16Array.from(x, half)),
    { weights: packed, scales: stored },
    fromTyped('f16', [n], Uint16Array.from(bias, half)),
    y,
    typeParams(type),
    { groupSize: group, experts },
  );
  await rt.sync();
  compare(y, x, k, bias, (j, c) => {
    const at = j * groups + Math.floor(c / group);
    return decodeCode(type, codes[j * k + c]!) * scales[at]! + shifts[at]!;
  });
}

test('TurboMind: integers, experts, fp4 and fp8', async () => {
  for (const type of ['u4', 'u8'])
    for (const group of [32, 64, 128])
      for (const experts of [false, true]) await turbomind(type, [3, 70, 256], group, experts);
  for (const type of ['f4e2m1', 'f8e4m3'])
    for (const group of [32, 128]) await turbomind(type, [3, 70, 256], group, false);
});

test('Sparse-MARLIN: shapes and numbers that disagree are refused', async () => {
  const x = allocate('f16', [1, 128]);
  const y = allocate('f16', [1, 64]);
  const w = {
    weights: allocate('i32', [4, 128]),
    metadata: allocate('i16', [4, 128]),
    scales: allocate('f16', [1, 64]),
  };
  const cases: (() => void)[] = [
    () => ops.gemmSparseMarlin(rt, x, w, undefined, y, { bits: 3, groupSize: 128 }),
    () => ops.gemmSparseMarlin(rt, x, w, undefined, y, { bits: 4, groupSize: 64 }),
    () => ops.gemmSparseMarlin(rt, x, w, undefined, y, { bits: 8, groupSize: 128 }),
    () =>
      ops.gemmSparseMarlin(rt, x, { ...w, metadata: allocate('i16', [4, 96]) }, undefined, y, {
        bits: 4,
        groupSize: 128,
      }),
    () =>
      ops.gemmSparseMarlin(rt, x, { ...w, scales: allocate('f16', [2, 64]) }, undefined, y, {
        bits: 4,
        groupSize: 128,
      }),
  ];
  for (const run of cases) {
    run();
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT' });
  }
});

test('shapes and numbers that disagree are refused', async () => {
  const x = allocate('f16', [1, 128]);
  const y = allocate('f16', [1, 256]);
  const w = { weights: allocate('i32', [8, 512]), scales: allocate('f16', [1, 256]) };
  const cases: (() => void)[] = [
    () => ops.gemmMarlin(rt, x, w, undefined, y, { bits: 3, groupSize: 128 }),
    () => ops.gemmMarlin(rt, x, w, undefined, y, { bits: 4, groupSize: 48 }),
    () => ops.gemmMarlin(rt, x, w, undefined, y, { bits: 4, groupSize: 32 }),
    () =>
      ops.gemmMarlin(rt, x, { ...w, weights: allocate('i32', [7, 512]) }, undefined, y, { bits: 4, groupSize: 128 }),
    () => {
      const permutation = fromTyped(
        'i32',
        [128],
        Int32Array.from({ length: 128 }, (_, i) => i + 1),
      );
      ops.gemmMarlin(rt, x, { ...w, permutation }, undefined, y, { bits: 4, groupSize: 128 });
    },
    () => ops.gemmTurbomind(rt, x, w, undefined, y, typeParams(quantType('u4')), { groupSize: 128 }),
    () => ops.gemmTurbomind(rt, x, w, undefined, y, typeParams(quantType('u3')), { groupSize: 128 }),
    () => ops.gemmTurbomind(rt, x, w, undefined, y, typeParams(quantType('f4e2m1')), { groupSize: 128, experts: true }),
  ];
  for (const run of cases) {
    run();
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT' });
  }
});
