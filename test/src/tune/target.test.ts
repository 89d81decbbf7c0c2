import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
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
    const same = { ...module, ...target.result() };
    await rt.sync();
    assert.deepEqual(same.codes.bytes(), module.codes.bytes());
    assert.deepEqual(same.scales.bytes(), module.scales.bytes());

    // No gradient: the target is the weight itself, and in the metric of the inputs codes come no further from it.
    target.step({ rate: 1, leak: 1, refit: false });
    await rt.sync();
    const first = typed(target.weight).slice();
    assert.ok(distance(first, values, x) <= distance(start, values, x) * (1 + 1e-5));

    // A gradient G moves the target by - G M^-1 with each row's root mean square at a grid point: rows come nearer to where it points.
    const slopes = random.normals(N * K);
    ops.cast(rt, fromTyped('f32', [N, K], slopes), target.gradient);
    target.step({ rate: 1, leak: 1, refit: true });
    target.keep();
    await rt.sync();
    let along = 0;
    typed(target.weight).forEach((value, i) => {
      along += (value - first[i]!) * slopes[i]!;
    });
    assert.ok(along < 0, `${along}`);
    assert.ok(typed(target.gradient).every((value) => value === 0));
    near(await weightOf({ ...module, ...target.result() }), typed(target.weight));
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
