import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Tensor, typed } from '../../native/binding.js';
import { type ActivationName, ops } from '../../native/ops.js';
import { rt, runtimeOf } from './runtime-under-test.js';
import { f32, i32, poisoned, Random } from './support.js';

/**
 * Compares a gradient with central differences of sum(dy * y) in double precision, y by plain loops. With steps of 1e-4 of values about
 * 1 those err by some 1e-8 (third derivatives of order 1); the operations' fp32 sums of n products err by n^(1/2) 2^-24 of the largest,
 * which a bound of 2e-5 of the largest element has room for.
 */
function expectGradient(
  what: string,
  got: Tensor,
  x: Float32Array,
  dy: Float32Array,
  forward: (x: Float64Array) => ArrayLike<number>,
): void {
  const at = Float64Array.from(x);
  const loss = () => Array.from(forward(at)).reduce((sum, y, i) => sum + y * dy[i]!, 0);
  const want = Array.from(x, (value, i) => {
    const [above, below] = [1e-4, -1e-4].map((step) => {
      at[i] = value + step;
      return loss();
    }) as [number, number];
    at[i] = value;
    return (above - below) / 2e-4;
  });
  const most = Math.max(...want.map(Math.abs));
  for (const [i, value] of want.entries())
    assert.ok(Math.abs(typed(got)[i]! - value) <= 2e-5 * most, `${what} ${i}: ${typed(got)[i]}, not ${value}`);
}

test('linear: gradients to its input and to its weight, added where asked; in bf16, of operands that it holds', async () => {
  const random = new Random(1);
  const bf16 = runtimeOf(2, 'bf16');
  // The upper half of a float is one that bf16 holds.
  const held = (list: Float32Array) =>
    new Float32Array(new Uint32Array(list.buffer).map((bits) => bits & 0xffff0000).buffer);
  const [x, w, dy] = [random.normals(17 * 21), random.normals(11 * 21), random.normals(17 * 11)].map(held) as [
    Float32Array,
    Float32Array,
    Float32Array,
  ];
  const made = (['f32', 'bf16'] as const).map((products) => {
    const on = products === 'f32' ? rt : bf16;
    const [dx, dw] = [poisoned('f32', [17, 21]), poisoned('f32', [11, 21])];
    ops.linearInputGradient(on, f32([17, 11], dy), f32([11, 21], w), dx);
    ops.linearWeightGradient(on, f32([17, 21], x), f32([17, 11], dy), dw);
    return [dx, dw] as const;
  });
  await rt.sync();
  await bf16.sync();
  // Products of eleven and seventeen terms of some 1: their sums are rounded in another order.
  for (const which of [0, 1] as const)
    typed(made[1]![which]).forEach((value, i) => {
      assert.ok(Math.abs(value - typed(made[0]![which])[i]!) <= 17 * 2 ** -23 * 40);
    });
  for (const [t, k, n] of [
    [5, 7, 3],
    [17, 20, 11],
  ] as const) {
    const [x, w, dy] = [random.normals(t * k), random.normals(n * k), random.normals(t * n)];
    const [dx, dw] = [poisoned('f32', [t, k]), poisoned('f32', [n, k])];
    ops.linearInputGradient(rt, f32([t, n], dy), f32([n, k], w), dx);
    ops.linearWeightGradient(rt, f32([t, k], x), f32([t, n], dy), dw);
    await rt.sync();
    const linear = (a: ArrayLike<number>, b: ArrayLike<number>): Float64Array =>
      Float64Array.from({ length: t * n }, (_, i) => {
        let sum = 0;
        for (let j = 0; j < k; j++) sum += a[Math.floor(i / n) * k + j]! * b[(i % n) * k + j]!;
        return sum;
      });
    expectGradient('dx', dx, x, dy, (at) => linear(at, w));
    expectGradient('dw', dw, w, dy, (at) => linear(x, at));
    const [once, twice] = [typed(dw).slice(), f32([n, k], typed(dw).slice())];
    ops.linearWeightGradient(rt, f32([t, k], x), f32([t, n], dy), twice, { accumulate: true });
    await rt.sync();
    once.forEach((value, i) => {
      assert.ok(Math.abs(typed(twice)[i]! - 2 * value) <= 1e-5 * Math.max(1, Math.abs(value)));
    });
  }
});

test('rmsnorm', async () => {
  const random = new Random(2);
  for (const [t, c, offset] of [
    [3, 15, 0],
    [5, 64, 1],
  ] as const) {
    const [x, w, dy] = [random.normals(t * c), random.normals(c), random.normals(t * c)];
    const dx = poisoned('f32', [t, c]);
    ops.rmsnormBackward(rt, f32([t, c], x), f32([t, c], dy), f32([c], w), dx, { eps: 1e-3, offset });
    const added = f32([t, c], new Float32Array(t * c).fill(2));
    ops.rmsnormBackward(rt, f32([t, c], x), f32([t, c], dy), f32([c], w), added, {
      eps: 1e-3,
      offset,
      accumulate: true,
    });
    await rt.sync();
    expectGradient('dx', dx, x, dy, (at) =>
      at.map((value, i) => {
        const row = at.subarray(Math.floor(i / c) * c, Math.floor(i / c) * c + c);
        return (value / Math.sqrt(row.reduce((sum, v) => sum + v * v, 0) / c + 1e-3)) * (w[i % c]! + offset);
      }),
    );
    assert.deepEqual(
      typed(added),
      typed(dx).map((value) => Math.fround(value + 2)),
    );
  }
});

test('rope turns the gradient back', async () => {
  const random = new Random(3);
  const [t, heads, headDim, rotary] = [6, 2, 10, 6];
  for (const style of ['half', 'interleaved'] as const) {
    const angles = random.normals(t * (rotary / 2), 3);
    const [cos, sin] = [angles.map(Math.cos), angles.map(Math.sin)];
    const [x, dy] = [random.normals(t * heads * headDim), random.normals(t * heads * headDim)];
    const tables = [f32([t, rotary / 2], cos), f32([t, rotary / 2], sin), i32([5, 4, 3, 2, 1, 0])] as const;
    const dx = f32([t, heads * headDim], dy.slice());
    ops.ropeBackward(rt, dx, ...tables, { heads, headDim, rotary, style });
    await rt.sync();
    expectGradient('dx', dx, x, dy, (at) => {
      const y = at.slice();
      for (let row = 0; row < t * heads; row++)
        for (let i = 0; i < rotary / 2; i++) {
          const [a, b] = style === 'half' ? [i, i + rotary / 2] : [2 * i, 2 * i + 1];
          const place = (5 - Math.floor(row / heads)) * (rotary / 2) + i;
          const [u, v] = [at[row * headDim + a]!, at[row * headDim + b]!];
          y[row * headDim + a] = u * cos[place]! - v * sin[place]!;
          y[row * headDim + b] = v * cos[place]! + u * sin[place]!;
        }
      return y;
    });
  }
});

const CURVES: Record<ActivationName, (x: number) => number> = {
  silu: (x) => x / (1 + Math.exp(-x)),
  sigmoid: (x) => 1 / (1 + Math.exp(-x)),
  quick_gelu: (x) => x / (1 + Math.exp(-1.702 * x)),
  gelu_tanh: (x) => 0.5 * x * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (x + 0.044715 * x ** 3))),
  relu: (x) => Math.max(x, 0),
  relu2: (x) => Math.max(x, 0) ** 2,
  gelu: (x) => {
    // x times the normal distribution function, by Simpson's rule from 0.
    const steps = 200;
    const density = (u: number) => Math.exp((-u * u) / 2) / Math.sqrt(2 * Math.PI);
    let sum = density(0) + density(x);
    for (let i = 1; i < steps; i++) sum += (i % 2 === 1 ? 4 : 2) * density((x * i) / steps);
    return x * (0.5 + (sum * x) / steps / 3);
  },
};

test('activations, alone and as gates', async () => {
  const random = new Random(4);
  const n = 41;
  for (const [act, curve] of Object.entries(CURVES) as [ActivationName, (x: number) => number][]) {
    // None within a step of 0, where relu has a corner.
    const x = random.normals(n, 2).map((value) => (Math.abs(value) < 0.01 ? 0.5 : value));
    const [up, dy] = [random.normals(n), random.normals(n)];
    const [dx, dgate, dup] = [poisoned('f32', [n]), poisoned('f32', [n]), f32([n], dy.slice())];
    ops.activationBackward(rt, f32([n], x), f32([n], dy), dx, { act });
    ops.gatedActivationBackward(rt, { gate: f32([n], x), up: f32([n], up), dy: dup }, { dgate, dup }, { act });
    await rt.sync();
    expectGradient(act, dx, x, dy, (at) => at.map(curve));
    expectGradient(`${act} gate`, dgate, x, dy, (at) => at.map((value, i) => curve(value) * up[i]!));
    expectGradient(`${act} up`, dup, up, dy, (at) => at.map((value, i) => curve(x[i]!) * value));
  }
});

interface Case {
  readonly lengths: readonly number[];
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  readonly window: number;
  readonly softCap: number;
  readonly sinks: boolean;
}

function attention(c: Case, q: ArrayLike<number>, k: ArrayLike<number>, v: ArrayLike<number>, sinks: Float32Array) {
  const { heads, kvHeads, headDim, valueDim } = c;
  const y: number[] = [];
  let first = 0;
  for (const length of c.lengths) {
    for (let t = 0; t < length; t++)
      for (let h = 0; h < heads; h++) {
        const kv = Math.floor(h / (heads / kvHeads));
        const low = c.window > 0 ? Math.max(0, t - c.window + 1) : 0;
        const weights: number[] = [];
        for (let s = low; s <= t; s++) {
          let score = 0;
          for (let d = 0; d < headDim; d++)
            score += q[((first + t) * heads + h) * headDim + d]! * k[((first + s) * kvHeads + kv) * headDim + d]!;
          score *= 0.4;
          weights.push(Math.exp(c.softCap > 0 ? c.softCap * Math.tanh(score / c.softCap) : score));
        }
        const total = weights.reduce((a, b) => a + b, c.sinks ? Math.exp(sinks[h]!) : 0);
        for (let d = 0; d < valueDim; d++)
          y.push(
            weights.reduce((sum, w, i) => sum + w * v[((first + low + i) * kvHeads + kv) * valueDim + d]!, 0) / total,
          );
      }
    first += length;
  }
  return y;
}

test('attention: causal, grouped, windows, caps, sinks; the same bytes on one thread and on three', async () => {
  const random = new Random(5);
  const plain = {
    lengths: [5, 1, 9],
    heads: 4,
    kvHeads: 2,
    headDim: 6,
    valueDim: 6,
    window: 0,
    softCap: 0,
    sinks: false,
  };
  const cases: Case[] = [
    plain,
    { ...plain, kvHeads: 4, valueDim: 3 },
    { ...plain, window: 3 },
    { ...plain, softCap: 1.5 },
    { ...plain, sinks: true, kvHeads: 1 },
    { ...plain, lengths: [115], heads: 1, kvHeads: 1, headDim: 2, valueDim: 1, window: 20 },
  ];
  for (const c of cases) {
    const { heads, kvHeads, headDim, valueDim, window, softCap } = c;
    const t = c.lengths.reduce((a, b) => a + b, 0);
    const starts = i32([0, ...c.lengths.map((_, i) => c.lengths.slice(0, i + 1).reduce((a, b) => a + b, 0))]);
    const sizes = [heads * headDim, kvHeads * headDim, kvHeads * valueDim, heads * valueDim] as const;
    const [q, k, v, dy] = sizes.map((size) => random.normals(t * size)) as [
      Float32Array<ArrayBuffer>,
      Float32Array<ArrayBuffer>,
      Float32Array<ArrayBuffer>,
      Float32Array<ArrayBuffer>,
    ];
    const sinks = random.normals(heads);
    const made: Tensor[][] = [];
    for (const threads of [2, 1, 3]) {
      const on = threads === 2 ? rt : runtimeOf(threads);
      const [dq, dk, dv] = sizes.slice(0, 3).map((size) => poisoned('f32', [t, size])) as [Tensor, Tensor, Tensor];
      const [tq, tk, tv, tdy] = [q, k, v, dy].map((data, i) => f32([t, sizes[i]!], data)) as [
        Tensor,
        Tensor,
        Tensor,
        Tensor,
      ];
      const of = { q: tq, k: tk, v: tv, starts, dy: tdy, ...(c.sinks && { sinks: f32([heads], sinks) }) };
      ops.attentionBackward(on, of, { dq, dk, dv }, { heads, kvHeads, headDim, valueDim, scale: 0.4, window, softCap });
      await on.sync();
      made.push([dq, dk, dv]);
    }
    const [dq, dk, dv] = made[0] as [Tensor, Tensor, Tensor];
    expectGradient('dq', dq, q, dy, (at) => attention(c, at, k, v, sinks));
    expectGradient('dk', dk, k, dy, (at) => attention(c, q, at, v, sinks));
    expectGradient('dv', dv, v, dy, (at) => attention(c, q, k, at, sinks));
    for (const others of made.slice(1))
      others.forEach((tensor, i) => {
        assert.deepEqual(typed(tensor), typed(made[0]![i]!));
      });
  }
});

test('the error of an output, and its squares', async () => {
  const random = new Random(6);
  const [y, target] = [random.normals(12), random.normals(12)];
  const [dy, sums] = [poisoned('f32', [3, 4]), poisoned('f64', [3])];
  ops.outputError(rt, f32([3, 4], y), f32([3, 4], target), dy, sums);
  await rt.sync();
  assert.deepEqual(
    typed(dy),
    y.map((value, i) => Math.fround(value - target[i]!)),
  );
  const want = [0, 1, 2].map((row) =>
    typed(dy)
      .slice(row * 4, row * 4 + 4)
      .reduce((sum, d) => sum + d * d, 0),
  );
  assert.deepEqual([...typed<Float64Array>(sums)], want);
});
