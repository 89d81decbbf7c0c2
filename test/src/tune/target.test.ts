import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { typeParams } from '../../../src/core/quant-type.js';
import { disposeModule, type QuantizedModule } from '../../../src/quantize/result.js';
import { roundWeight } from '../../../src/quantize/round.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { dequantizeResult } from '../../../src/quantize/stored.js';
import { Curvature } from '../../../src/tune/curvature.js';
import { tuneOps } from '../../../src/tune/ops.js';
import { Target } from '../../../src/tune/target.js';
import { Random } from '../../native/support.js';

const rt = createRuntime(2);
const [N, K, TOKENS, DAMP] = [16, 128, 200, 0.05];
const SCHEMES = [
  { bits: 4, groupSize: 32 },
  { bits: 3, groupSize: 32, asym: true },
  { bits: 2, groupSize: 'channel' },
  { bits: 1, groupSize: 32 },
  { bits: 4, groupSize: 128, groupScales: 'integer' },
  { dtype: 'mxfp4' },
  { dtype: 'nvfp4' },
  { dtype: 'f6e3m2', groupSize: 32 },
] as const;

/** Columns of inputs that depend on each other, so that their moments have large entries off the diagonal. */
function inputs(random: Random): Float32Array {
  const x = random.normals(TOKENS * K);
  return x.map((value, i) => value + (i % K === 0 ? 0 : 0.8 * (x[i - 1] as number)));
}

/** tr((Wq - T) M (Wq - T)ᵀ) in double precision, M of x with its damping. */
function distance(weight: Float32Array, target: ArrayLike<number>, x: Float32Array): number {
  let [sum, mean] = [0, 0];
  for (const value of x) mean += value ** 2 / K;
  for (let row = 0; row < N; row++) {
    const d = Array.from({ length: K }, (_, j) => weight[row * K + j]! - target[row * K + j]!);
    for (let t = 0; t < TOKENS; t++) sum += d.reduce((s, value, j) => s + value * x[t * K + j]!, 0) ** 2;
    sum += DAMP * mean * d.reduce((s, value) => s + value ** 2, 0);
  }
  return sum;
}

const weightOf = async (module: QuantizedModule): Promise<Float32Array> => {
  const tensor = dequantizeResult(rt, module);
  await rt.sync();
  return typed(tensor).slice();
};

for (const options of SCHEMES)
  test(`${JSON.stringify(options)}: training begins with the codes that it is given, and they follow the target`, async () => {
    const random = new Random(7);
    const values = random.normals(N * K);
    const scheme = schemeFromOptions(options as Parameters<typeof schemeFromOptions>[0]);
    const module = await roundWeight(rt, fromTyped('f32', [N, K], values), scheme, 'w');
    const x = inputs(random);
    const curvature = new Curvature(rt, K);
    curvature.add(fromTyped('f32', [TOKENS, K], x));
    curvature.finish(DAMP);
    const target = Target.begin(rt, fromTyped('f32', [N, K], values), module, curvature);
    const start = await weightOf(module);
    await rt.sync();
    const near = (got: Float32Array, want: Float32Array) =>
      got.forEach((value, i) => {
        // (code - zero) * scale * global against (code - zero) * (scale * global): two roundings.
        assert.ok(Math.abs(value - want[i]!) <= 2.1 * 2 ** -23 * Math.abs(want[i]!), `weight ${i}`);
      });
    near(typed(target.weight), start);
    const same = { ...module, ...(await target.result()) };
    await rt.sync();
    assert.deepEqual(same.codes.bytes(), module.codes.bytes());
    assert.deepEqual(same.scales.bytes(), module.scales.bytes());

    // No gradient: the target is the weight itself, and in the metric of the inputs codes come no further from it.
    Target.step([target], { rate: 1, leak: 1, refit: false });
    await rt.sync();
    const first = typed(target.weight).slice();
    assert.ok(distance(first, values, x) <= distance(start, values, x) * (1 + 1e-5));

    // A gradient G moves the target by - G M^-1 with each row's root mean square at a grid point: rows come nearer to where it points.
    const slopes = random.normals(N * K);
    ops.cast(rt, fromTyped('f32', [N, K], slopes), target.gradient);
    Target.step([target], { rate: 1, leak: 1, refit: true, grids: true });
    target.keep();
    await rt.sync();
    let along = 0;
    typed(target.weight).forEach((value, i) => {
      along += (value - first[i]!) * slopes[i]!;
    });
    assert.ok(along < 0, `${along}`);
    assert.ok(typed(target.gradient).every((value) => value === 0));
    near(await weightOf({ ...module, ...(await target.result()) }), typed(target.weight));
    disposeModule(module);
    target.dispose();
    curvature.dispose();
  });

test('a step of targets is that of its formula, in double precision', async () => {
  const random = new Random(5);
  const [n, k, groups, rate, leak] = [7, 40, 4, 0.3, 0.8];
  const f32 = (shape: number[], of: Float32Array): Tensor => fromTyped('f32', shape, of.slice());
  const [p, w, t, scale] = [n * k, n * k, n * k, n * groups].map((count) => random.normals(count)) as [
    Float32Array,
    Float32Array,
    Float32Array,
    Float32Array,
  ];
  p.fill(0, 0, k);
  const most = Float32Array.from({ length: n }, (_, row) => (row === 3 ? 100 : 0));
  const [moved, largest] = [f32([n, k], t), f32([n], most)];
  tuneOps.aim(
    rt,
    { p: f32([n, k], p), w: f32([n, k], w), scale: f32([n, groups], scale), t: moved, most: largest },
    { rate, leak },
  );
  await rt.sync();
  for (let row = 0; row < n; row++) {
    const own = p.subarray(row * k, (row + 1) * k);
    const size = Math.max(most[row]!, Math.sqrt(own.reduce((sum, value) => sum + value ** 2, 0) / k));
    const unit = scale.subarray(row * groups, (row + 1) * groups).reduce((sum, s) => sum + Math.abs(s), 0) / groups;
    assert.ok(Math.abs(typed(largest)[row]! - size) <= 2 ** -23 * size);
    own.forEach((value, j) => {
      const i = row * k + j;
      const step = size === 0 ? 0 : (rate * unit * value) / size;
      const want = w[i]! + leak * (t[i]! - w[i]!) - step;
      // Six roundings of terms no larger than these.
      const scaleOf = Math.abs(w[i]!) + leak * (Math.abs(t[i]!) + Math.abs(w[i]!)) + Math.abs(step);
      assert.ok(Math.abs(typed(moved)[i]! - want) <= 6 * 2 ** -24 * scaleOf, `target ${i}`);
    });
  }
});

/** (w - t) M (w - t)ᵀ of a row. */
function errorOf(w: readonly number[], t: ArrayLike<number>, m: Float32Array): number {
  const e = w.map((value, j) => value - t[j]!);
  return e.reduce((sum, a, i) => sum + a * e.reduce((line, b, j) => line + b * m[i * e.length + j]!, 0), 0);
}

/** The point where a parabola through three others is least. */
function least(at: (x: number) => number, x: readonly [number, number, number]): number {
  const [a, b, c] = x.map(at) as [number, number, number];
  const [below, above] = [(b - a) / (x[1] - x[0]), (c - b) / (x[2] - x[1])];
  const curve = (above - below) / (x[2] - x[0]);
  return (x[0] + x[1]) / 2 - below / (2 * curve);
}

for (const dtype of ['f8_e8m0', 'f8_e4m3', 'f32'] as const)
  test(`refits of ${dtype === 'f32' ? 'zero points' : dtype}: group after group the best neighbour, in double precision`, async () => {
    const random = new Random(11);
    const [n, k, size] = [6, 32, 8];
    const [zeros, groups] = [dtype === 'f32', k / size];
    const unit = dtype === 'f8_e4m3' ? 0.75 : 1;
    const x = random.normals(3 * k * k).map((value, i, all) => value + (i % k === 0 ? 0 : 0.7 * all[i - 1]!));
    const m = new Float32Array(k * k);
    for (let i = 0; i < k * k; i++)
      for (let r = 0; r < 3 * k; r++) m[i]! += x[r * k + Math.floor(i / k)]! * x[r * k + (i % k)]!;
    const t = random.normals(n * k);
    // Scales that their dtype holds, some too large and some too small, and zero points off the middle.
    const scale = Float32Array.from({ length: n * groups }, (_, i) => unit * 2 ** ((i % 3) - 2));
    const zero = Float32Array.from({ length: n * groups }, (_, i) => (zeros ? [0, 1, 3][i % 3]! : 2));
    const level = t.map((value, i) => {
      const g = Math.floor(i / size);
      return Math.min(3, Math.max(0, Math.round(value / scale[g]! + zero[g]!)));
    });
    const weights = (row: number, s: ArrayLike<number>, z: ArrayLike<number>) =>
      Array.from({ length: k }, (_, j) => {
        const g = row * groups + Math.floor(j / size);
        return (level[row * k + j]! - z[g]!) * s[g]!;
      });
    const r = new Float32Array(n * k);
    for (let row = 0; row < n; row++) {
      const e = weights(row, scale, zero).map((value, j) => value - t[row * k + j]!);
      for (let i = 0; i < k; i++) r[row * k + i] = e.reduce((sum, value, j) => sum + value * m[j * k + i]!, 0);
    }
    const f32 = (shape: number[], of: Float32Array): Tensor => fromTyped('f32', shape, of.slice());
    const now = { scale: f32([n, groups], scale), zero: f32([n, groups], zero), level: f32([n, k], level) };
    const moved = rt.allocate('f64', [1]);
    const type = typeParams({ kind: 'int', name: 'u2', bits: 2, signed: false });
    const given = { groupSize: size, scaleDtype: dtype, unit, zeros, ...type };
    tuneOps.refitGrid(rt, { r: f32([n, k], r), m: f32([k, k], m), ...now }, moved, given);
    await rt.sync();

    let count = 0;
    const [s, z] = [Float64Array.from(scale), Float64Array.from(zero)];
    for (let g = 0; g < n * groups; g++) {
      const row = Math.floor(g / groups);
      const own = t.subarray(row * k, (row + 1) * k);
      const cost = (at: number, by: number) => errorOf(weights(row, s.with(g, at), z.with(g, by)), own, m);
      const old = s[g]!;
      const others = zeros
        ? [-1, 1]
            .map((up) => z[g]! + up)
            .filter((by) => by >= 0 && by <= 3)
            .map((by) => [Math.fround(least((at) => cost(at, by), [0.8 * old, old, 1.2 * old])), by] as const)
            .filter(([at]) => at / old > 0.5 && at / old < 2)
        : // Of powers of two: the next ones of e4m3, which has three bits of mantissa, are an eighth up and a sixteenth down.
          (dtype === 'f8_e8m0' ? [0.5, 2] : [15 / 16, 9 / 8]).map((factor) => [factor * old, z[g]!] as const);
      const [best] = others.toSorted((a, b) => cost(...a) - cost(...b));
      if (best && cost(...best) < cost(old, z[g]!)) {
        [s[g], z[g]] = best;
        count++;
      }
      assert.equal(typed(now.zero)[g], z[g], `zero ${g}`);
      assert.ok(Math.abs(typed(now.scale)[g]! - s[g]!) <= (zeros ? 1e-4 : 0) * Math.abs(s[g]!), `scale ${g}`);
    }
    assert.equal(typed(moved)[0], count);
    assert.ok(count > 3, String(count));
  });
