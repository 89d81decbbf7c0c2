import assert from 'node:assert/strict';
import { test } from 'node:test';
import { benchOps, type WeightDraw } from '../../bench/ops.js';
import { allocate, createRuntime, type Tensor, typed } from '../../native/binding.js';
import { decodeBf16, decodeF16, poisoned } from './support.js';

const rt = createRuntime(2);
const PLAIN: WeightDraw = {
  seed: 7,
  columnSeed: 9,
  std: 1,
  rowSpread: 0,
  columnSpread: 0,
  outlierShare: 0,
  outlierGain: 1,
};
const FULL: WeightDraw = {
  ...PLAIN,
  mean: 0.5,
  std: 0.02,
  rowSpread: 0.3,
  columnSpread: 0.2,
  outlierShare: 0.02,
  outlierGain: 5,
};

async function drawn(shape: readonly number[], draw: WeightDraw, runtime = rt, firstRow = 0): Promise<Float32Array> {
  const tensor = poisoned('f32', shape);
  benchOps.synthWeights(runtime, tensor, draw, firstRow);
  await runtime.sync();
  return typed(tensor);
}

/** SplitMix64's output function on a counter, in BigInt. */
function mixed(x: bigint): bigint {
  const mask = (1n << 64n) - 1n;
  x = ((x ^ (x >> 30n)) * 0xbf58476d1ce4e5b9n) & mask;
  x = ((x ^ (x >> 27n)) * 0x94d049bb133111ebn) & mask;
  return x ^ (x >> 31n);
}

/** P(|Z| < z) by the Taylor series of erf; alternating terms up to e^9 cost 4 of 16 digits for z < 4.4. */
function twoSided(z: number): number {
  const x = z / Math.SQRT2;
  let [term, sum] = [x, x];
  for (let n = 1; n < 200; n++) {
    term *= (-x * x) / n;
    sum += term / (2 * n + 1);
  }
  return (2 / Math.sqrt(Math.PI)) * sum;
}

test('deviates are the quantiles that the counter draws', async () => {
  const [n, k] = [5, 1027];
  const weights = await drawn([n, k], PLAIN);
  const perRow = BigInt(Math.ceil(k / 4));
  for (let row = 0; row < n; row++)
    for (let i = 0; i < k; i++) {
      const counter = BigInt(row) * perRow + BigInt(i >> 2);
      const word = mixed((mixed(7n) + 0x9e3779b97f4a7c15n * (counter + 1n)) & ((1n << 64n) - 1n));
      const bits = Number((word >> BigInt(16 * (i & 3))) & 0xffffn);
      const z = weights[row * k + i] as number;
      assert.equal(z < 0, bits >= 0x8000);
      // z is an f32 (relative error 2^-24), its quantile interpolated on a step of 2^-12; dP/dz <= 0.8. Near the tail P is
      // flat, so that 1e-7 there still tells one of 2^15 quantiles (3e-5 apart) from the next.
      const p = ((bits & 0x7fff) + 0.5) / 2 ** 15;
      assert.ok(Math.abs(twoSided(Math.abs(z)) - p) < 1e-6, `row ${row}, column ${i}: ${z} at ${p}`);
    }
});

test('rows may be cut anywhere, and threads change nothing', async () => {
  const [n, k] = [67, 130];
  const whole = await drawn([n, k], FULL);
  assert.deepEqual(await drawn([n, k], FULL, createRuntime(3)), whole);
  for (const first of [1, 40, 66])
    assert.deepEqual(await drawn([n - first, k], FULL, rt, first), whole.slice(first * k));
  assert.notDeepEqual(await drawn([n, k], { ...FULL, seed: 8 }), whole);
});

test('scales vary by row and column as asked, and a share of the columns stands out', async () => {
  const [n, k] = [512, 2048];
  const weights = await drawn([n, k], { ...FULL, mean: 0, outlierShare: 1 / 32 });
  const rms = (values: number[]) => Math.sqrt(values.reduce((sum, x) => sum + x * x, 0) / values.length);
  const spread = (values: number[]) => {
    const logs = values.map(Math.log);
    const mean = logs.reduce((a, b) => a + b, 0) / logs.length;
    return Math.sqrt(logs.reduce((sum, x) => sum + (x - mean) ** 2, 0) / logs.length);
  };
  const rows = Array.from({ length: n }, (_, r) => rms([...weights.subarray(r * k, (r + 1) * k)]));
  const columns = Array.from({ length: k }, (_, c) => rms(rows.map((_, r) => weights[r * k + c] as number)));
  // A row's measured scale has a relative error of about 1/sqrt(2k) = 0.02 (more with outliers), the spread itself one of
  // 1/sqrt(2n) = 3 %: five of those.
  assert.ok(Math.abs(spread(rows) - 0.3) < 0.06, `rows ${spread(rows)}`);
  const typical = [...columns].sort((a, b) => a - b)[k >> 1] as number;
  const outliers = columns.filter((scale) => scale > 2.4 * typical);
  // Log-normal columns of spread 0.2 exceed 2.4 (4.4 spreads) never, outliers of gain 5 nearly always (3.7 spreads).
  // Binomial: 64 expected, standard deviation 8.
  assert.ok(Math.abs(outliers.length - k / 32) < 40, `${outliers.length} outliers`);
  assert.ok(Math.abs(spread(columns.filter((scale) => scale <= 2.4 * typical)) - 0.2) < 0.03);
});

test('narrow types are the f32 values rounded', async () => {
  const shape = [9, 77];
  const wide = await drawn(shape, FULL);
  for (const [dtype, decode, digits] of [
    ['f16', decodeF16, 11],
    ['bf16', decodeBf16, 8],
  ] as const) {
    const tensor: Tensor = poisoned(dtype, shape);
    benchOps.synthWeights(rt, tensor, FULL);
    await rt.sync();
    const bits = typed<Uint16Array>(tensor);
    // Half a unit in the last place: relative 2^-digits; f16 has a spacing of 2^-24 below 2^-14.
    for (const [i, x] of wide.entries())
      assert.ok(
        Math.abs(decode(bits[i] as number) - x) <= Math.max(Math.abs(x) * 2 ** -digits, 2 ** -25),
        `${dtype} ${i}`,
      );
  }
});

test('vectors are one row; what is no weight is refused', async () => {
  assert.deepEqual(await drawn([50], FULL), await drawn([1, 50], FULL));
  for (const [tensor, what] of [
    [allocate('i32', [2, 2]), /i32/],
    [allocate('f32', [2, 2, 2]), /dimension/],
  ] as const) {
    benchOps.synthWeights(rt, tensor, FULL);
    await assert.rejects(rt.sync(), what);
  }
  benchOps.synthWeights(rt, allocate('f32', [2]), { ...FULL, outlierShare: 2 });
  await assert.rejects(rt.sync(), /outlierShare/);
});
