import assert from 'node:assert/strict';
import { test } from 'node:test';
import { typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { tuneOps } from '../../src/tune/ops.js';
import { expectGradients } from './gradients.js';
import { rt, runtimeOf } from './runtime-under-test.js';
import { f32, poisoned, Random } from './support.js';

/** KL(softmax(z) || softmax(y)) of each row of `v`, in doubles. */
function divergences(z: ArrayLike<number>, y: ArrayLike<number>, v: number): Float64Array {
  return Float64Array.from({ length: z.length / v }, (_, row) => {
    const logs = [z, y].map((logits) => {
      const own = Array.from({ length: v }, (_, i) => logits[row * v + i]!);
      const most = Math.max(...own);
      const total = Math.log(own.reduce((sum, x) => sum + Math.exp(x - most), 0)) + most;
      return own.map((x) => x - total);
    }) as [number[], number[]];
    return logs[0].reduce((sum, p, i) => sum + Math.exp(p) * (p - logs[1][i]!), 0);
  });
}

test('divergence of next-token distributions and its gradient; the same bytes on one thread and on three, and in place', async () => {
  const random = new Random(1);
  for (const [t, v, scale] of [
    [3, 1, 1],
    [5, 37, 1],
    [4, 300, 6],
  ] as const) {
    const [y, z] = [random.normals(t * v, scale), random.normals(t * v, scale)];
    const made: number[][] = [];
    for (const threads of [2, 1, 3]) {
      const on = threads === 2 ? rt : runtimeOf(threads);
      const [dlogits, sums] = [poisoned('f32', [t, v]), poisoned('f64', [t])];
      ops.divergence(on, f32([t, v], y), f32([t, v], z), { dlogits, sums }, { factor: 0.5 });
      await on.sync();
      made.push([...typed(dlogits)], [...typed<Float64Array>(sums)]);
    }
    for (const [i, other] of made.entries()) assert.deepEqual(other, made[i % 2]);
    const place = f32([t, v], y.slice());
    const sums = poisoned('f64', [t]);
    ops.divergence(rt, place, f32([t, v], z), { dlogits: place, sums }, { factor: 0.5 });
    await rt.sync();
    assert.deepEqual([...typed(place)], made[0]);
    // Sums in fp32 of v exponentials, each of some ulps, err by v^(1/2) 2^-23; one divides what is compared, one has its logarithm taken.
    divergences(z, y, v).forEach((want, row) => {
      assert.ok(
        Math.abs(made[1]![row]! - want) <= Math.sqrt(v) * 2 ** -23 * (1 + want),
        `row ${row}: ${made[1]![row]}, not ${want}`,
      );
    });
    if (v > 1) expectGradients({ y }, { y: place }, new Float32Array(t).fill(0.5), (at) => divergences(z, at.y!, v));
    else assert.deepEqual([...typed(place)], [0, 0, 0]);
  }
});

test('soft_cap: the gradient, from its output', async () => {
  const random = new Random(2);
  const [x, dy] = [random.normals(40, 3), random.normals(40)];
  for (const cap of [0, 2.5]) {
    const [y, dx] = [poisoned('f32', [4, 10]), poisoned('f32', [4, 10])];
    ops.softCap(rt, f32([4, 10], x), y, { scale: 0.7, cap });
    ops.softCapBackward(rt, y, f32([4, 10], dy), dx, { scale: 0.7, cap });
    await rt.sync();
    expectGradients({ x }, { x: dx }, dy, (at) =>
      at.x!.map((value) => (cap > 0 ? cap * Math.tanh((value * 0.7) / cap) : value * 0.7)),
    );
  }
});

test('factors of scales: the gradient of a group is added to what is there', async () => {
  const random = new Random(3);
  const [n, k, groupSize] = [3, 12, 4];
  const [base, dw] = [random.normals(n * k), random.normals(n * k)];
  const f = random.normals(n * 3, 0.1).map((value) => 1 + value);
  const group = (i: number) => Math.floor(i / k) * 3 + Math.floor((i % k) / groupSize);
  const w = base.map((value, i) => value * f[group(i)]!);
  const g = f32([n, 3], new Float32Array(9).fill(2));
  tuneOps.scaleGradient(rt, { dw: f32([n, k], dw), w: f32([n, k], w), f: f32([n, 3], f) }, g, { groupSize });
  await rt.sync();
  const less = f32(
    [n, 3],
    typed(g).map((value) => value - 2),
  );
  expectGradients({ f }, { f: less }, dw, (at) => Float64Array.from(base, (value, i) => value * at.f![group(i)]!));
});

test('adam: steps as its paper has them, within bounds; gradients are 0 afterwards', async () => {
  const random = new Random(4);
  const p = { rate: 0.1, beta1: 0.9, beta2: 0.95, eps: 1e-8, least: 0.7, most: 1.2 };
  const shape = [5] as const;
  const ones = () => f32(shape, new Float32Array(5).fill(1));
  const zeros = () => f32(shape, new Float32Array(5));
  const [f, m, v] = [ones(), zeros(), zeros()];
  const want = Array.from({ length: 5 }, () => ({ f: 1, m: 0, v: 0 }));
  for (let step = 1; step <= 6; step++) {
    const slopes = random.normals(5, 1e-3);
    const g = f32(shape, slopes.slice());
    tuneOps.adam(rt, { f, g, m, v }, { ...p, step });
    await rt.sync();
    assert.deepEqual([...typed(g)], [0, 0, 0, 0, 0]);
    for (const [i, at] of want.entries()) {
      const slope = slopes[i]!;
      at.m = p.beta1 * at.m + (1 - p.beta1) * slope;
      at.v = p.beta2 * at.v + (1 - p.beta2) * slope * slope;
      const change = (p.rate * (at.m / (1 - p.beta1 ** step))) / (Math.sqrt(at.v / (1 - p.beta2 ** step)) + p.eps);
      at.f = Math.min(p.most, Math.max(p.least, at.f - change));
      // Six steps, of moments and factors that are rounded to fp32 each time.
      assert.ok(Math.abs(typed(f)[i]! - at.f) <= 6 * 2 ** -22, `step ${step}, ${i}: ${typed(f)[i]}, not ${at.f}`);
    }
  }
});
