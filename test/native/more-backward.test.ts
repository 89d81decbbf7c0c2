import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { expectGradients } from './gradients.js';
import { rt, runtimeOf } from './runtime-under-test.js';
import { f32, i32, poisoned, Random } from './support.js';

for (const [t, c, turns, offset, weighed] of [
  [3, 15, 1, 0, true],
  [6, 33, 3, 1, true],
  [4, 64, 1, 0, false],
] as const)
  test(`layernorm: rows of ${c}, ${turns} weights in turn, ${weighed ? `offset ${offset}` : 'no weight'}`, async () => {
    const random = new Random(c);
    const [x, w, dy] = [random.normals(t * c), random.normals(turns * c), random.normals(t * c)];
    const given = [f32([t, c], x), f32([t, c], dy), weighed ? f32([turns, c], w) : undefined] as const;
    const [dx, added] = [poisoned('f32', [t, c]), f32([t, c], new Float32Array(t * c).fill(2))];
    ops.layernormBackward(rt, ...given, dx, { eps: 1e-3, offset, turns });
    ops.layernormBackward(rt, ...given, added, { eps: 1e-3, offset, turns, accumulate: true });
    await rt.sync();
    expectGradients({ x }, { x: dx }, dy, ({ x: at }) =>
      at!.map((value, i) => {
        const row = Math.floor(i / c);
        const all = at!.subarray(row * c, row * c + c);
        const mean = all.reduce((sum, v) => sum + v, 0) / c;
        const deviation = Math.sqrt(all.reduce((sum, v) => sum + (v - mean) ** 2, 0) / c + 1e-3);
        return ((value - mean) / deviation) * (weighed ? w[(row % turns) * c + (i % c)]! + offset : 1);
      }),
    );
    assert.deepEqual(
      typed(added),
      typed(dx).map((value) => Math.fround(value + 2)),
    );
  });

const sigmoid = (x: number): number => 1 / (1 + Math.exp(-x));
const clamp = (x: number, limit: number): number => Math.min(Math.max(x, -limit), limit);

/** None within a step of a corner. */
const apartFrom = (values: Float32Array<ArrayBuffer>, corner: number): Float32Array<ArrayBuffer> =>
  values.map((value) => (Math.abs(Math.abs(value) - corner) < 0.01 ? corner / 2 : value));

test('gates that are cut off: clamped with a slope, limited', async () => {
  const random = new Random(7);
  const [n, limit, alpha] = [57, 1.2, 1.7];
  const [gate, up] = [apartFrom(random.normals(n, 2), limit), apartFrom(random.normals(n, 2), limit)];
  const dy = random.normals(n);
  const of = { gate: f32([n], gate), up: f32([n], up) };
  const [clamped, limited] = [0, 1].map(() => ({ dgate: poisoned('f32', [n]), dup: f32([n], dy.slice()) })) as [
    Record<'dgate' | 'dup', Tensor>,
    Record<'dgate' | 'dup', Tensor>,
  ];
  ops.clampedSwigluBackward(rt, { ...of, dy: clamped.dup }, clamped, { alpha, limit });
  ops.limitedGateBackward(rt, { ...of, dy: limited.dup }, limited, { limit });
  await rt.sync();
  const made = (slope: number, more: number) => (at: Record<string, Float64Array>) =>
    at.gate!.map((x, i) => {
      const g = Math.min(x, limit);
      return (clamp(at.up![i]!, limit) + more) * g * sigmoid(slope * g);
    });
  const got = ({ dgate, dup }: Record<'dgate' | 'dup', Tensor>) => ({ gate: dgate, up: dup });
  expectGradients({ gate, up }, got(clamped), dy, made(alpha, 1));
  expectGradients({ gate, up }, got(limited), dy, made(1, 0));
});

test('xIELU', async () => {
  const random = new Random(8);
  const n = 43;
  const [x, dy] = [apartFrom(random.normals(n, 2), 0), random.normals(n)].map((values) =>
    values.map((value) => (Math.abs(value) < 0.01 ? 0.5 : value)),
  ) as [Float32Array<ArrayBuffer>, Float32Array<ArrayBuffer>];
  const [positive, negative, beta, eps] = [0.3, -0.4, 0.5, -1e-6];
  const one = (value: number) => f32([1], Float32Array.of(value));
  const dx = f32([n], dy.slice());
  const of = { positive: one(positive), negative: one(negative), beta: one(beta), eps: one(eps) };
  ops.xieluBackward(rt, f32([n], x), of, dx, dx);
  await rt.sync();
  const [above, below] = [Math.log1p(Math.exp(positive)), beta + Math.log1p(Math.exp(negative))];
  expectGradients({ x }, { x: dx }, dy, ({ x: at }) =>
    at!.map((v) => (v > 0 ? above * v * v : below * (Math.expm1(Math.min(v, eps)) - v)) + beta * v),
  );
});

for (const [lengths, heads, kvHeads, choices, block, top] of [
  [[9, 1, 14], 4, 2, 1, 1, 3],
  [[17, 4], 4, 4, 2, 3, 2],
  [[114], 1, 1, 1, 4, 5],
] as const)
  test(`attention to chosen keys: ${choices} choices of ${top} runs of ${block}; the same bytes on one thread`, async () => {
    const random = new Random(top + block);
    const [headDim, valueDim, scale] = heads === 1 ? [2, 1, 0.6] : [4, 3, 0.6];
    const t = lengths.reduce((a: number, b) => a + b, 0);
    const starts = [0, ...lengths.map((_, i) => lengths.slice(0, i + 1).reduce((a: number, b) => a + b, 0))];
    const first = Array.from({ length: t }, (_, i) => starts.findLast((start) => start <= i)!);
    // The own run and earlier ones, as many as there are, rising.
    const selected = Array.from({ length: t }, (_, i) =>
      Array.from({ length: choices }, () => {
        const own = Math.floor((i - first[i]!) / block);
        const picked = new Set([own]);
        while (picked.size < Math.min(top, own + 1)) picked.add(random.integer(0, own));
        const rising = [...picked].sort((a, b) => a - b);
        return [...rising, ...new Array<number>(top - rising.length).fill(-1)];
      }).flat(),
    );
    const sizes = { q: heads * headDim, k: kvHeads * headDim, v: kvHeads * valueDim };
    const given = Object.fromEntries(
      Object.entries(sizes).map(([name, size]) => [name, random.normals(t * size)]),
    ) as Record<'q' | 'k' | 'v', Float32Array<ArrayBuffer>>;
    const dy = random.normals(t * heads * valueDim);
    const p = { heads, kvHeads, headDim, valueDim, scale, choices, block };
    const made = await Promise.all(
      [rt, runtimeOf(1)].map(async (on) => {
        const [q, k, v] = (['q', 'k', 'v'] as const).map((name) => f32([t, sizes[name]], given[name]));
        const out = Object.fromEntries(
          Object.entries(sizes).map(([name, size]) => [`d${name}`, poisoned('f32', [t, size])]),
        ) as Record<'dq' | 'dk' | 'dv', Tensor>;
        const of = { q: q!, k: k!, v: v!, starts: i32(starts), selected: i32(selected.flat(), [t, choices * top]) };
        ops.attentionBackward(on, { ...of, dy: f32([t, heads * valueDim], dy) }, out, p);
        await on.sync();
        return { q: out.dq, k: out.dk, v: out.dv };
      }),
    );
    expectGradients(given, made[0]!, dy, ({ q, k, v }) => {
      const y: number[] = [];
      for (let i = 0; i < t; i++)
        for (let h = 0; h < heads; h++) {
          const [kv, choice] = [Math.floor(h / (heads / kvHeads)), Math.floor(h / (heads / choices))];
          const tokens = selected[i]!.slice(choice * top, (choice + 1) * top)
            .filter((run) => run >= 0)
            .flatMap((run) => Array.from({ length: block }, (_, j) => first[i]! + run * block + j))
            .filter((s) => s <= i);
          const weights = tokens.map((s) => {
            let score = 0;
            for (let d = 0; d < headDim; d++)
              score += q![(i * heads + h) * headDim + d]! * k![(s * kvHeads + kv) * headDim + d]!;
            return Math.exp(scale * score);
          });
          const total = weights.reduce((a, b) => a + b, 0);
          for (let d = 0; d < valueDim; d++)
            y.push(weights.reduce((sum, w, j) => sum + w * v![(tokens[j]! * kvHeads + kv) * valueDim + d]!, 0) / total);
        }
      return Float64Array.from(y);
    });
    for (const name of ['q', 'k', 'v'] as const) assert.deepEqual(typed(made[1]![name]), typed(made[0]![name]));
  });
