import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { decodeBf16, expectClose, f32, i32, poisoned, Random, typed, U32 } from './support.js';

const rt = createRuntime(2);

const failsWith = async (code: string, words: RegExp) =>
  assert.rejects(
    rt.sync(),
    (error: { code?: string; message: string }) => error.code === code && words.test(error.message),
  );

interface Routing {
  readonly experts: number;
  readonly k: number;
  readonly sigmoid?: boolean;
  readonly normalize: boolean;
  readonly bias?: boolean;
  readonly groups?: number;
  readonly topGroups?: number;
  readonly topTwo?: boolean;
  readonly scale?: number;
}

const ROUTINGS: readonly Routing[] = [
  { experts: 1, k: 1, sigmoid: true, normalize: false },
  { experts: 24, k: 5, normalize: false, scale: 16 },
  { experts: 24, k: 5, sigmoid: true, normalize: true },
  { experts: 24, k: 5, sigmoid: true, normalize: false, bias: true, scale: 2.5 },
  { experts: 32, k: 4, normalize: false, groups: 8, topGroups: 3 },
  { experts: 32, k: 4, normalize: true, groups: 4, topGroups: 1, topTwo: true },
  { experts: 64, k: 8, sigmoid: true, normalize: true, bias: true, groups: 8, topGroups: 4, topTwo: true, scale: 2.5 },
  { experts: 36, k: 6, sigmoid: true, normalize: true, bias: true, groups: 3, topGroups: 3, topTwo: true },
  { experts: 21, k: 3, normalize: true, bias: true },
];

for (const c of ROUTINGS)
  test(`routing ${JSON.stringify(c)}`, async () => {
    const random = new Random(c.experts + c.k);
    const { experts, k, groups = 1, topGroups = 1, scale = 1, bias: biased, ...flags } = c;
    const tokens = 70;
    const logits = random.normals(tokens * experts, 2);
    const bits = Uint16Array.from(
      { length: experts },
      () => (random.integer(0, 1) << 15) | random.integer(0x3c00, 0x3e7f),
    );
    const bias = biased ? fromTyped('bf16', [experts], bits) : undefined;
    const indices = poisoned('i32', [tokens, k]);
    const weights = poisoned('f32', [tokens, k]);
    ops.routeTopK(
      rt,
      f32([tokens, experts], logits),
      indices,
      weights,
      { k, groups, topGroups, scale, ...flags },
      bias,
    );
    await rt.sync();
    const [gotIndices, gotWeights] = [typed<Int32Array>(indices), typed(weights)];
    const size = experts / groups;
    for (let t = 0; t < tokens; t++) {
      const row = [...logits.subarray(t * experts, (t + 1) * experts)];
      const total = row.reduce((sum, x) => sum + Math.exp(x), 0);
      const share = row.map((x) => (c.sigmoid ? 1 / (1 + Math.exp(-x)) : Math.exp(x) / total));
      const wish = share.map((x, e) => x + (biased ? decodeBf16(bits[e]!) : 0));
      const scores = Array.from({ length: groups }, (_, g) => {
        const best = wish.slice(g * size, (g + 1) * size).sort((a, b) => b - a);
        return c.topTwo ? best[0]! + best[1]! : best[0]!;
      });
      const inOrder = scores.map((_, g) => g).sort((a, b) => scores[b]! - scores[a]! || a - b);
      const open = new Set(inOrder.slice(0, topGroups));
      const order = wish.map((_, e) => e).filter((e) => open.has(Math.floor(e / size)));
      order.sort((a, b) => wish[b]! - wish[a]! || a - b);
      const chosen = [...gotIndices.slice(t * k, t * k + k)];
      assert.deepEqual(chosen, order.slice(0, k), `token ${t}`);
      const sum = c.normalize ? chosen.reduce((all, e) => all + share[e]!, 0) : 1;
      const want = chosen.map((e) => (scale * share[e]!) / sum);
      // exp 3 units, the chain of a sum 7, quotients and products one each; twice for the normalisation.
      expectClose('weights', gotWeights.slice(t * k, t * k + k), want, (i) => 30 * U32 * want[i]!);
    }
  });

test('routing: ties go to the lower expert and group; sigmoids that underflow give no NaN', async () => {
  const [indices, weights] = [poisoned('i32', [1, 3]), poisoned('f32', [1, 3])];
  const same = f32([1, 12], new Float32Array(12).fill(-200));
  const choice = { k: 3, normalize: true, sigmoid: true, groups: 4, topGroups: 2, topTwo: true };
  ops.routeTopK(rt, same, indices, weights, choice, f32([12], new Float32Array(12)));
  await rt.sync();
  assert.deepEqual([...typed<Int32Array>(indices)], [0, 1, 2]);
  assert.deepEqual([...typed(weights)], [0, 0, 0]);
});

test('routing refuses groups that do not fit and numbers that are none', async () => {
  const logits = f32([1, 8], new Float32Array(8));
  const [indices, weights] = [poisoned('i32', [1, 3]), poisoned('f32', [1, 3])];
  const route = (p: Partial<Parameters<typeof ops.routeTopK>[4]>, bias?: Tensor) =>
    ops.routeTopK(rt, logits, indices, weights, { k: 3, normalize: true, ...p }, bias);
  route({ groups: 3 });
  await failsWith('LPQ_NATIVE_ARGUMENT', /groups is 3, which does not divide 8/);
  route({ groups: 4, topGroups: 5 });
  await failsWith('LPQ_NATIVE_ARGUMENT', /topGroups is 5/);
  route({ groups: 8, topGroups: 4, topTwo: true });
  await failsWith('LPQ_NATIVE_ARGUMENT', /groups of two/);
  route({ groups: 4, topGroups: 1 });
  await failsWith('LPQ_NATIVE_ARGUMENT', /k is 3, .* 2$/);
  route({}, f32([7], new Float32Array(7)));
  await failsWith('LPQ_NATIVE_ARGUMENT', /bias has the shape \[7\]/);
  route({}, f32([8], new Float32Array(8).fill(Number.NaN)));
  await failsWith('LPQ_NATIVE_NUMERICS', /bias of expert 0/);
});

test('the clamped gate', async () => {
  const random = new Random(3);
  const [alpha, limit] = [1.702, 7];
  const [gate, up] = [random.normals(1003, 6), random.normals(1003, 6)];
  gate.set([7.5, -300, 0, 7]);
  up.set([-9, 9, 1, -7]);
  const y = poisoned('f32', [17, 59]);
  ops.clampedSwiglu(rt, f32([17, 59], gate), f32([17, 59], up), y, { alpha, limit });
  const inPlace = f32([17, 59], gate);
  ops.clampedSwiglu(rt, inPlace, f32([17, 59], up), inPlace, { alpha, limit });
  await rt.sync();
  const want = gate.map((g, i) => {
    const clamped = Math.min(g, limit);
    return ((Math.max(-limit, Math.min(up[i]!, limit)) + 1) * clamped) / (1 + Math.exp(-alpha * clamped));
  });
  // alpha rounded and multiplied moves the exponent by 2 units of alpha g, hence by that many the sigmoid's tail; exp 3, and
  // six operations. up + 1 cancels: an absolute unit of the sum of sizes.
  const bound = (i: number) => {
    const slope = Math.abs(alpha * Math.min(gate[i]!, limit));
    const line = Math.abs(up[i]!) + 1;
    const glu = Math.abs(want[i]!) + (line * Math.abs(Math.min(gate[i]!, limit))) / (1 + Math.exp(-alpha * gate[i]!));
    return (2 * slope + 12) * U32 * glu + 1e-37;
  };
  expectClose('clamped gate', typed(y), want, bound);
  assert.deepEqual(typed(inPlace), typed(y));
  ops.clampedSwiglu(rt, inPlace, inPlace, inPlace, { alpha, limit: 0 });
  await failsWith('LPQ_NATIVE_ARGUMENT', /limit/);
});

test('parts of heads are copied, from each head or from one for all', async () => {
  const [tokens, heads, fromDim, toDim] = [13, 5, 7, 9];
  for (const shared of [false, true]) {
    const x = new Random(9).normals(tokens * (shared ? 1 : heads) * fromDim);
    const y = f32([tokens, heads * toDim], new Float32Array(tokens * heads * toDim).fill(0.5));
    ops.copyHeads(rt, f32([tokens, (shared ? 1 : heads) * fromDim], x), y, {
      heads,
      width: 4,
      fromDim,
      from: 3,
      toDim,
      to: 1,
      shared,
    });
    await rt.sync();
    const want = typed(y).map((_, i) => {
      const [t, h, c] = [Math.floor(i / (heads * toDim)), Math.floor(i / toDim) % heads, i % toDim];
      return c < 1 || c >= 5 ? 0.5 : x[(shared ? t : t * heads + h) * fromDim + 3 + c - 1]!;
    });
    assert.deepEqual(typed(y), want);
  }
  const x = f32([2, 6], new Float32Array(12));
  ops.copyHeads(rt, x, poisoned('f32', [2, 6]), { heads: 2, width: 2, fromDim: 3, from: 2, toDim: 3, to: 0 });
  await failsWith('LPQ_NATIVE_ARGUMENT', /columns 2 to 4 are not in a head of 3/);
});

test('a strided matrix of any element size, out of larger tensors', async () => {
  const [experts, k, columns] = [3, 70, 90];
  for (const dtype of ['u8', 'bf16', 'f32', 'f64'] as const) {
    const count = experts * k * columns;
    const Kind = { u8: Uint8Array, bf16: Uint16Array, f32: Float32Array, f64: Float64Array }[dtype];
    const data = Kind.from(Array.from({ length: count }, (_, i) => (i * 7) % 251));
    const x = fromTyped(dtype, [experts, k, columns], data);
    const y = poisoned(dtype, [columns / 2, k]);
    ops.stridedMatrix(rt, x, y, { first: 2 * k * columns + 1, rowStep: 2, columnStep: columns });
    await rt.sync();
    const got = typed<ArrayLike<number>>(y);
    for (let n = 0; n < columns / 2; n++)
      for (let i = 0; i < k; i++) assert.equal(got[n * k + i], data[(2 * k + i) * columns + 2 * n + 1]);
  }
  ops.stridedMatrix(rt, f32([2, 3], new Float32Array(6)), poisoned('f32', [2, 3]), {
    first: 1,
    rowStep: 3,
    columnStep: 1,
  });
  await failsWith('LPQ_NATIVE_ARGUMENT', /outside x of 6 elements/);
});

test('sinks take part in the softmax of their head and have no value', async () => {
  const random = new Random(12);
  const [heads, kvHeads, headDim, valueDim] = [4, 2, 24, 16];
  const starts = [0, 150, 151, 290];
  const tokens = 290;
  const q = random.normals(tokens * heads * headDim);
  const k = random.normals(tokens * kvHeads * headDim);
  const v = random.normals(tokens * kvHeads * valueDim);
  const sinkBits = Uint16Array.of(0x4040, 0xc0a0, 0x0000, 0x41a0); // 3, -5, 0, 20
  for (const [window, softCap] of [
    [0, 0],
    [9, 0],
    [0, 2],
    [9, 2],
  ] as const) {
    const y = poisoned('f32', [tokens, heads * valueDim]);
    const p = { heads, kvHeads, headDim, valueDim, scale: 0.2, window, softCap };
    const tensors = [f32([tokens, heads * headDim], q), f32([tokens, kvHeads * headDim], k)] as const;
    ops.attention(
      rt,
      ...tensors,
      f32([tokens, kvHeads * valueDim], v),
      i32(starts),
      y,
      p,
      fromTyped('bf16', [4], sinkBits),
    );
    await rt.sync();
    const got = typed(y);
    for (let s = 0; s + 1 < starts.length; s++)
      for (let t = starts[s]!; t < starts[s + 1]!; t++)
        for (let h = 0; h < heads; h++) {
          const first = window > 0 ? Math.max(starts[s]!, t - window + 1) : starts[s]!;
          const kv = h >> 1;
          const shares: number[] = [];
          for (let u = first; u <= t; u++) {
            let dot = 0;
            for (let i = 0; i < headDim; i++)
              dot += q[(t * heads + h) * headDim + i]! * k[(u * kvHeads + kv) * headDim + i]!;
            // Sinks are not capped.
            const score = dot * 0.2;
            shares.push(Math.exp(softCap > 0 ? softCap * Math.tanh(score / softCap) : score));
          }
          const total = shares.reduce((a, b) => a + b, Math.exp(decodeBf16(sinkBits[h]!)));
          for (let i = 0; i < valueDim; i++) {
            const want =
              shares.reduce((sum, share, u) => sum + share * v[((first + u) * kvHeads + kv) * valueDim + i]!, 0) /
              total;
            // A score is a chain of 24 products whose sizes sum to less than 20 here, times 0.2: wrong by 25 * 4 units; its
            // share by that and 3 of exp. Twice, for the total, then sums in blocks of 128: 140. Values are below 5. A cap of 2
            // makes no error larger, and adds its own 18 units of at most 2 (nn.test.ts).
            assert.ok(
              Math.abs(got[(t * heads + h) * valueDim + i]! - want) <
                5 * (2 * (103 + (softCap > 0 ? 36 : 0)) + 140) * U32,
              `${t} ${h} ${i}`,
            );
          }
        }
  }
});
