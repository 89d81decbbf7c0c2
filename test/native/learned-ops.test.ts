import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { decodeBf16, expectClose, f32, poisoned, Random, typed, U32 } from './support.js';

/** xIELU, rows scaled, LayerNorm with an offset, an RMS norm without a weight, SparseMixer: plain loops in double. */

const rt = createRuntime(2);
const failsWith = (words: RegExp) =>
  assert.rejects(
    rt.sync(),
    (error: { code?: string; message: string }) => error.code === 'LPQ_NATIVE_ARGUMENT' && words.test(error.message),
  );

test('xIELU is a parabola above 0 and bends below, by parameters of any dtype', async () => {
  const x = new Random(3).normals(2000, 3);
  x.set([0, -0, 1e-7, -1e-7, -2e-6, 60, -60]);
  for (const [p, n, b, e] of [
    [0.8, -0.3, 0.5, -1e-6],
    [25, -4, 0.25, -0.5],
  ] as const) {
    const bits = (value: number) => new Uint32Array(Float32Array.of(value).buffer)[0]! >>> 16;
    const [beta, eps] = [decodeBf16(bits(b)), decodeBf16(bits(e))];
    const one = (value: number) => fromTyped('bf16', [1], Uint16Array.of(bits(value)));
    const of = { positive: f32([1], Float32Array.of(p)), negative: f32([1], Float32Array.of(n)) };
    const [from, y] = [f32([8, 250], x), poisoned('f32', [8, 250])];
    const scalars = { beta: one(b).view([]), eps: one(e).view([]) };
    ops.xielu(rt, from, { ...of, ...scalars }, y);
    ops.xielu(rt, from, { ...of, ...scalars }, from);
    await rt.sync();
    const softplus = (value: number) => Math.log(1 + Math.exp(value));
    const [above, below] = [softplus(Math.fround(p)), beta + softplus(Math.fround(n))];
    const want = Float64Array.from(x, (v) => {
      // Where expm1(v) - v cancels its series stands: v^2/2 + v^3/6 + v^4/24.
      const bent =
        v < eps ? (v > -1e-3 ? v ** 2 / 2 + v ** 3 / 6 + v ** 4 / 24 : Math.expm1(v) - v) : Math.expm1(eps) - v;
      return beta * v + (v > 0 ? above * v * v : below * bent);
    });
    // Computed in double; one rounding, and what Math.exp's last bit makes of differences of terms of up to |x|.
    expectClose('xIELU', typed(y), want, (i) => U32 * Math.abs(want[i]!) + 1e-14 * (1 + Math.abs(x[i]!)));
    assert.deepEqual(typed(from), typed(y));
  }
  const [x6, two] = [poisoned('f32', [6]), poisoned('f32', [2])];
  ops.xielu(rt, x6, { positive: two, negative: two, beta: two, eps: two }, x6);
  await failsWith(/positive has 2 elements/);
});

test('rows are scaled each by its own number, or all by one, whole or some columns', async () => {
  const random = new Random(5);
  const [rows, width] = [37, 50];
  const [x, by] = [random.normals(rows * width, 1), random.normals(rows, 1)];
  const y = poisoned('f32', [rows, width]);
  const part = f32([rows, width], x);
  const all = poisoned('f32', [rows, width]);
  ops.scaleRows(rt, f32([rows, width], x), f32([rows], by), y, { factor: 0.5 });
  ops.scaleRows(rt, part, f32([rows, 1], by), part, { first: 7, width: 11 });
  ops.scaleRows(rt, f32([rows, width], x), fromTyped('bf16', [], Uint16Array.of(0x3fc0)), all);
  const plain = poisoned('f32', [rows, width]);
  ops.scaleRows(rt, f32([rows, width], x), undefined, plain, { factor: 3 });
  await rt.sync();
  const row = (i: number) => Math.floor(i / width);
  const rounded = (value: number, factor: number) => Math.fround(value * Math.fround(factor));
  assert.deepEqual(
    typed(y),
    x.map((value, i) => rounded(value, by[row(i)]! * 0.5)),
  );
  const inside = (i: number) => i % width >= 7 && i % width < 18;
  assert.deepEqual(
    typed(part),
    x.map((value, i) => (inside(i) ? rounded(value, by[row(i)]!) : value)),
  );
  assert.deepEqual(
    typed(all),
    x.map((value) => rounded(value, 1.5)),
  );
  assert.deepEqual(
    typed(plain),
    x.map((value) => rounded(value, 3)),
  );
  ops.scaleRows(rt, part, f32([3], new Float32Array(3)), part);
  await failsWith(/scales has 3 elements of f32, not 1 or 37 of f32/);
  ops.scaleRows(rt, part, undefined, y, { first: 7, width: 11 });
  await failsWith(/in place only/);
});

test('a LayerNorm adds its offset to the weight, an RMS norm without a weight has none', async () => {
  const random = new Random(8);
  const [rows, width] = [21, 96];
  const [x, weight, bias] = [random.normals(rows * width, 2), random.normals(width, 0.2), random.normals(width, 1)];
  const [layer, rms, h, fused] = [0, 1, 2, 3].map(() => poisoned('f32', [rows, width]));
  const p = { eps: 1e-5, offset: 1 };
  ops.layernorm(rt, f32([rows, width], x), f32([width], weight), f32([width], bias), layer!, p);
  ops.rmsnorm(rt, f32([rows, width], x), undefined, rms!, { eps: 1e-5 });
  ops.zero(rt, h!);
  ops.addNorm(rt, h!, f32([rows, width], x), f32([width], weight), f32([width], bias), fused!, { kind: 'layer', ...p });
  const heads = f32([rows, width], x);
  ops.rmsnorm(rt, heads, undefined, heads, { eps: 1e-5, first: 24, runs: 3, width: 16 });
  await rt.sync();
  const norm = (values: Float32Array, centred: boolean) => {
    const mean = centred ? values.reduce((sum, v) => sum + v, 0) / values.length : 0;
    const square = values.reduce((sum, v) => sum + (v - mean) ** 2, 0) / values.length;
    return Float64Array.from(values, (v) => (v - mean) / Math.sqrt(square + 1e-5));
  };
  const wanted = (centred: boolean) =>
    Array.from({ length: rows }, (_, t) => norm(x.slice(t * width, (t + 1) * width), centred)).flatMap((r) => [...r]);
  const [centred, plain] = [wanted(true), wanted(false)];
  // The root, the quotient, gain and sum: some eight roundings of terms up to |centred| * gain + |bias|.
  const gained = Float64Array.from(centred, (v, i) => v * (weight[i % width]! + 1) + bias[i % width]!);
  const bound = (i: number) =>
    8 * U32 * (Math.abs(centred[i]!) * (Math.abs(weight[i % width]!) + 1) + Math.abs(bias[i % width]!) + 1);
  expectClose('layer', typed(layer!), gained, bound);
  assert.deepEqual(typed(fused!), typed(layer!));
  expectClose('rms', typed(rms!), Float64Array.from(plain), (i) => 8 * U32 * Math.abs(plain[i]!) + 1e-37);
  const got = typed<Float32Array>(heads);
  for (const head of [0, 1, 2]) {
    const at = 5 * width + 24 + 16 * head;
    const want = norm(x.slice(at, at + 16), false);
    expectClose(`head ${head}`, got.slice(at, at + 16), want, (i) => 8 * U32 * Math.abs(want[i]!) + 1e-37);
  }
  assert.equal(got[5 * width + 23], x[5 * width + 23]);
  assert.equal(got[5 * width + 72], x[5 * width + 72]);
});

test('SparseMixer weighs each choice among the experts close to it', async () => {
  const [tokens, experts] = [90, 16];
  for (const [k, jitter, spread] of [
    [2, 0.01, 0.05],
    [2, 0.2, 1],
    [3, 0.1, 2],
  ] as const) {
    const logits = new Random(k + 31).normals(tokens * experts, spread);
    logits.set([0, 0, 0, 0]);
    const [indices, weights] = [poisoned('i32', [tokens, k]), poisoned('f32', [tokens, k])];
    const scores = f32([tokens, experts], logits);
    ops.routeTopK(rt, scores, indices, weights, { k, normalize: false, jitter, scale: 2 });
    await rt.sync();
    const [chosen, got] = [typed<Int32Array>(indices), typed<Float32Array>(weights)];
    for (let t = 0; t < tokens; t++) {
      const row = logits.subarray(t * experts, (t + 1) * experts);
      const left = new Set(row.keys());
      for (let j = 0; j < k; j++) {
        const most = Math.max(...[...left].map((e) => row[e]!));
        const best = [...left].find((e) => row[e] === most)!;
        assert.equal(chosen[t * k + j], best);
        const near = [...left].filter((e) => {
          const far = Math.fround(Math.fround(most - row[e]!) / Math.max(Math.abs(row[e]!), most));
          return !(far > Math.fround(2 * Math.fround(jitter)));
        });
        const sum = near.reduce((total, e) => total + Math.exp(row[e]! - most), 0);
        assert.ok(Math.abs(got[t * k + j]! - 2 / sum) <= 1e-6, `token ${t}, choice ${j}`);
        left.delete(best);
      }
    }
  }
  const [i, w] = [poisoned('i32', [4, 2]), poisoned('f32', [4, 2])];
  ops.routeTopK(rt, f32([4, 6], new Float32Array(24)), i, w, { k: 2, normalize: true, jitter: 0.1 });
  await failsWith(/jitter goes without/);
});
