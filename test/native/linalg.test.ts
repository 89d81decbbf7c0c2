import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, type DType, fromTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { decodeBf16, decodeF16, expectClose, f32, poisoned, Random, typed, U32, U64 } from './support.js';

const rt = createRuntime(2);

/** Values of a weight dtype: a tensor, and the numbers in it. */
function weights(random: Random, dtype: DType, shape: readonly number[]): { tensor: Tensor; values: Float64Array } {
  const count = shape.reduce((a, b) => a * b, 1);
  if (dtype === 'f32') {
    const data = random.normals(count);
    return { tensor: f32(shape, data), values: Float64Array.from(data) };
  }
  // Random patterns with exponents of ordinary weights, so that no cast of ours is involved.
  const data = Uint16Array.from({ length: count }, () => {
    const sign = random.integer(0, 1) << 15;
    return dtype === 'f16'
      ? sign | (random.integer(9, 15) << 10) | random.integer(0, 1023)
      : sign | (random.integer(120, 127) << 7) | random.integer(0, 127);
  });
  const values = Float64Array.from(data, dtype === 'f16' ? decodeF16 : decodeBf16);
  return { tensor: fromTyped(dtype, shape, data), values };
}

// Shapes around every tile edge: rows 1, 4, 6, 14 and 64 (the few-rows path), columns 8, 16, 32, depths 16 and 512.
const SHAPES: readonly (readonly [t: number, n: number, k: number])[] = [
  [1, 1, 1],
  [1, 33, 513],
  [3, 31, 17],
  [14, 32, 16],
  [15, 47, 530],
  [64, 65, 1100],
  [65, 64, 1025],
  [129, 96, 40],
  [190, 130, 7],
  [2, 5, 2050],
];

test('linear equals the f64 product within the bound of its summation order', async () => {
  const random = new Random(1);
  for (const [t, n, k] of SHAPES)
    for (const dtype of ['f32', 'f16', 'bf16'] as const)
      for (const mode of ['plain', 'bias', 'accumulate', 'both'] as const) {
        const x = random.normals(t * k);
        const { tensor: w, values } = weights(random, dtype, [n, k]);
        const bias = weights(random, dtype, [n]);
        const start = random.normals(t * n, 10);
        const accumulate = mode === 'accumulate' || mode === 'both';
        const hasBias = mode === 'bias' || mode === 'both';
        const y = accumulate ? f32([t, n], start) : poisoned('f32', [t, n]);
        ops.linear(rt, f32([t, k], x), w, hasBias ? bias.tensor : undefined, y, { accumulate });
        await rt.sync();
        const want = new Float64Array(t * n);
        const size = new Float64Array(t * n);
        for (let i = 0; i < t; i++)
          for (let j = 0; j < n; j++) {
            let sum = accumulate ? start[i * n + j]! : 0;
            let all = Math.abs(sum);
            if (hasBias) {
              sum += bias.values[j]!;
              all += Math.abs(bias.values[j]!);
            }
            for (let p = 0; p < k; p++) {
              const product = x[i * k + p]! * values[j * k + p]!;
              sum += product;
              all += Math.abs(product);
            }
            want[i * n + j] = sum;
            size[i * n + j] = all;
          }
        // A term passes through at most min(k, 512) fma, one addition a block, and one for the bias: each rounding is
        // relative to a partial sum of at most the sum of magnitudes (Higham, section 3.1; 1.01 covers second order).
        const roundings = Math.min(k, 512) + Math.ceil(k / 512) + 2;
        expectClose(`linear ${t}x${n}x${k} ${dtype} ${mode}`, typed(y), want, (i) => 1.01 * roundings * U32 * size[i]!);
      }
});

/** To the nearest bf16, ties to even, of a number that is none of the least. */
const toBf16 = (value: number): number => {
  const bits = new Uint32Array(Float32Array.of(value).buffer)[0] as number;
  return decodeBf16((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16);
};

test('products in bf16 are those of rounded operands, in linears and second moments', async () => {
  const random = new Random(7);
  const bf16 = createRuntime({ threads: 2, products: 'bf16' });
  for (const [t, n, k] of SHAPES)
    for (const dtype of ['f32', 'f16', 'bf16'] as const) {
      const x = random.normals(t * k);
      const { tensor: w, values } = weights(random, dtype, [n, k]);
      const [a, b] = [x, values].map((list) => Float64Array.from(list, toBf16)) as [Float64Array, Float64Array];
      const y = poisoned('f32', [t, n]);
      ops.linear(bf16, f32([t, k], x), w, undefined, y);
      await bf16.sync();
      const [want, size] = [new Float64Array(t * n), new Float64Array(t * n)];
      for (let i = 0; i < t; i++)
        for (let j = 0; j < n; j++)
          for (let p = 0; p < k; p++) {
            const product = a[i * k + p]! * b[j * k + p]!;
            want[i * n + j]! += product;
            size[i * n + j]! += Math.abs(product);
          }
      // As above: rounded operands are the operands.
      const roundings = Math.min(k, 512) + Math.ceil(k / 512) + 2;
      expectClose(`linear in bf16 ${t}x${n}x${k} ${dtype}`, typed(y), want, (i) => 1.01 * roundings * U32 * size[i]!);
    }
  const [t, k] = [1029, 70];
  const [a, b] = [random.normals(t * k), random.normals(t * k)];
  const [h, c] = [poisoned('f64', [k, k]), poisoned('f64', [k, k])];
  for (const sum of [h, c]) ops.zero(bf16, sum);
  ops.gramAccumulate(bf16, f32([t, k], a), h);
  ops.crossAccumulate(bf16, f32([t, k], a), f32([t, k], b), c);
  await bf16.sync();
  const [left, right] = [a, b].map((list) => Float64Array.from(list, toBf16)) as [Float64Array, Float64Array];
  for (const [name, other, sum] of [['gram', left, h] as const, ['cross', right, c] as const]) {
    const [want, size] = [new Float64Array(k * k), new Float64Array(k * k)];
    for (let r = 0; r < t; r++)
      for (let i = 0; i < k; i++)
        for (let j = 0; j < k; j++) {
          const product = left[r * k + i]! * other[r * k + j]!;
          want[i * k + j]! += product;
          size[i * k + j]! += Math.abs(product);
        }
    expectClose(`${name} in bf16`, typed(sum), want, (i) => 1.01 * 513 * U32 * size[i]!);
  }
});

test('linear with no tokens or no features', async () => {
  const y = poisoned('f32', [3, 4]);
  ops.linear(rt, poisoned('f32', [3, 0]), poisoned('f32', [4, 0]), undefined, y);
  ops.linear(rt, poisoned('f32', [0, 5]), poisoned('bf16', [4, 5]), undefined, poisoned('f32', [0, 4]));
  await rt.sync();
  assert.deepEqual([...typed(y)], new Array(12).fill(0));
});

function gramReference(a: Float32Array, b: Float32Array, t: number, k: number) {
  const sum = new Float64Array(k * k);
  const size = new Float64Array(k * k);
  for (let r = 0; r < t; r++)
    for (let i = 0; i < k; i++)
      for (let j = 0; j < k; j++) {
        const product = a[r * k + i]! * b[r * k + j]!;
        sum[i * k + j]! += product;
        size[i * k + j]! += Math.abs(product);
      }
  return { sum, size };
}

for (const [t, k, weight] of [
  [1, 1, 1],
  [5, 33, 2],
  [513, 14, 1],
  [600, 65, 0.125],
  [1100, 47, 3],
] as const)
  test(`gram and cross of ${t} x ${k}, added to what is there`, async () => {
    const random = new Random(t * 1000 + k);
    const a = random.normals(t * k);
    const b = random.normals(t * k);
    const start = Float64Array.from({ length: k * k }, () => 0);
    for (let i = 0; i < k; i++) for (let j = 0; j <= i; j++) start[i * k + j] = start[j * k + i] = random.normal();
    const h = fromTyped('f64', [k, k], start);
    const c = fromTyped('f64', [k, k], start);
    ops.gramAccumulate(rt, f32([t, k], a), h, { weight });
    ops.crossAccumulate(rt, f32([t, k], a), f32([t, k], b), c, { weight });
    await rt.sync();
    // Per block of at most 512 rows one f32 chain of fma; everything after that is f64 and does not show.
    const bound = (size: Float64Array) => (i: number) =>
      1.01 * Math.min(t, 512) * U32 * weight * size[i]! + 1e-13 * (1 + size[i]! * weight);
    const gram = gramReference(a, a, t, k);
    const cross = gramReference(a, b, t, k);
    const add = (sum: Float64Array) => sum.map((v, i) => start[i]! + weight * v);
    expectClose('gram', typed<Float64Array>(h), add(gram.sum), bound(gram.size));
    expectClose('cross', typed<Float64Array>(c), add(cross.sum), bound(cross.size));
    const got = typed<Float64Array>(h);
    for (let i = 0; i < k; i++) for (let j = 0; j < i; j++) assert.equal(got[i * k + j], got[j * k + i]);
  });

test('drift is what the cross product has beyond the Gram matrix, whose lower triangle is enough', async () => {
  const [k, scale] = [45, 0.125];
  const random = new Random(45);
  const start = random.normals(k * k);
  const lower = random.normals(k * k);
  const h = fromTyped(
    'f64',
    [k, k],
    Float64Array.from(lower, (v, i) => (i % k > Math.floor(i / k) ? Number.NaN : v)),
  );
  const c = fromTyped('f64', [k, k], Float64Array.from(start));
  ops.crossDrift(rt, h, c, { scale });
  await rt.sync();
  const got = typed<Float64Array>(c);
  for (let i = 0; i < k; i++)
    for (let j = 0; j < k; j++)
      assert.equal(got[i * k + j], (start[i * k + j]! - lower[Math.max(i, j) * k + Math.min(i, j)]!) * scale);
});

test('gram names the first NaN or infinity, and an overflow of its products', async () => {
  const x = new Random(3).normals(40 * 20);
  for (const [value, pattern] of [
    [Number.NaN, /x holds NaN at row 7, column 13/],
    [Number.NEGATIVE_INFINITY, /x holds infinity at row 7, column 13/],
    [1e30, /column 13 of x overflow/],
  ] as const) {
    const bad = x.slice();
    bad[7 * 20 + 13] = value;
    const h = fromTyped('f64', [20, 20], new Float64Array(400));
    ops.gramAccumulate(rt, f32([40, 20], bad), h);
    await assert.rejects(rt.sync(), (error: Error & { code?: string }) => {
      assert.equal(error.code, 'LPQ_NATIVE_NUMERICS');
      assert.match(error.message, pattern);
      return true;
    });
  }
});

test('cholesky: L Lᵀ = A within the bound, zeros above, the failing column named', async () => {
  for (const n of [1, 2, 63, 64, 65, 130, 257]) {
    const random = new Random(n);
    const g = Float64Array.from({ length: n * n }, () => random.normal());
    const a = new Float64Array(n * n);
    for (let i = 0; i < n; i++)
      for (let j = 0; j <= i; j++) {
        let sum = i === j ? 1 : 0;
        for (let p = 0; p < n; p++) sum += g[i * n + p]! * g[j * n + p]!;
        a[i * n + j] = a[j * n + i] = sum;
      }
    const poisonedUpper = a.slice();
    for (let i = 0; i < n; i++) for (let j = i + 1; j < n; j++) poisonedUpper[i * n + j] = Number.NaN;
    const tensor = fromTyped('f64', [n, n], poisonedUpper);
    const info = poisoned('i32', [1]);
    ops.cholesky(rt, tensor, info);
    await rt.sync();
    assert.equal(typed<Int32Array>(info)[0], 0);
    const l = typed<Float64Array>(tensor);
    for (let i = 0; i < n; i++) {
      for (let j = 0; j <= i; j++) {
        let sum = 0;
        for (let p = 0; p <= j; p++) sum += l[i * n + p]! * l[j * n + p]!;
        // |A - L Lᵀ| <= gamma(n+1) |L||Lᵀ| (Higham, theorem 10.3), |L||Lᵀ|_ij <= sqrt(a_ii a_jj); as much again for the
        // sum just made.
        const bound = 2.1 * (n + 2) * U64 * Math.sqrt(a[i * n + i]! * a[j * n + j]!);
        assert.ok(Math.abs(sum - a[i * n + j]!) <= bound, `n=${n} [${i},${j}]: ${sum} for ${a[i * n + j]}`);
      }
      for (let j = i + 1; j < n; j++) assert.equal(l[i * n + j], 0);
    }
    const broken = a.slice();
    const at = Math.floor(n * 0.7);
    broken[at * n + at] = -1;
    ops.cholesky(rt, fromTyped('f64', [n, n], broken), info);
    await rt.sync();
    assert.equal(typed<Int32Array>(info)[0], at + 1);
  }
});
