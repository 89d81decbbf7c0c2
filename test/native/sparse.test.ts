import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped, type Tensor, typed } from '../../native/binding.js';
import { gptqOps } from '../../native/gptq-ops.js';
import { ops } from '../../native/ops.js';
import { type QuantType, quantType, typeParams } from '../../src/core/quant-type.js';
import { f32, i32, poisoned, Random } from './support.js';

// 2:4 against an fp64 reference by definition: optimal brain surgery with explicit updates of the inverse Hessian, every one
// of the six pairs of four columns tried.

const rt = createRuntime(2);
const PAIRS = [
  [0, 1],
  [0, 2],
  [0, 3],
  [1, 2],
  [1, 3],
  [2, 3],
] as const;

interface Problem {
  readonly n: number;
  readonly k: number;
  readonly groups: number;
  readonly type: QuantType;
  readonly t: Float32Array;
  readonly m: Float64Array;
  readonly scale: Float32Array;
  readonly zero: Float32Array;
  readonly u: Tensor;
  readonly metric: Tensor;
}

/** Correlated inputs with a few strong channels. */
async function problem(n: number, k: number, groups: number, name: string, seed: number): Promise<Problem> {
  const random = new Random(seed);
  const type = quantType(name);
  const rows = 3 * k;
  const h = new Float64Array(k * k);
  const x = new Float64Array(k);
  for (let r = 0; r < rows; r++) {
    const shared = random.normal();
    for (let c = 0; c < k; c++) x[c] = (random.normal() + 0.7 * shared) * (c % 7 === 0 ? 4 : 1);
    for (let a = 0; a < k; a++) for (let b = 0; b < k; b++) h[a * k + b]! += x[a]! * x[b]!;
  }
  const [u, metric] = [poisoned('f32', [k, k]), poisoned('f32', [k, k])];
  const order = i32(Array.from({ length: k }, (_, i) => i));
  gptqOps.factor(
    rt,
    fromTyped('f64', [k, k], h),
    order,
    { u, m: metric, dead: poisoned('u8', [k]), info: poisoned('f64', [3]) },
    0.01,
  );
  await rt.sync();
  let mean = 0;
  for (let i = 0; i < k; i++) mean += h[i * k + i]! / k;
  const m = h.map((value, i) => (i % (k + 1) === 0 ? value + 0.01 * mean : value));
  const zero = new Float32Array(n * groups).fill(type.kind === 'int' && !type.signed ? 2 ** (type.bits - 1) - 1 : 0);
  const scale = Float32Array.from({ length: n * groups }, (_, i) => 0.4 + 0.03 * (i % 5));
  return { n, k, groups, type, t: random.normals(n * k), m, scale, zero, u, metric };
}

const inputs = (p: Problem, matrix: Tensor) => ({
  t: f32([p.n, p.k], p.t),
  matrix,
  scale: f32([p.n, p.groups], p.scale),
  zero: f32([p.n, p.groups], p.zero),
  group: i32(Array.from({ length: p.k }, (_, j) => Math.floor((j * p.groups) / p.k))),
});

interface Chosen {
  readonly level: Tensor;
  readonly keep: Tensor;
}

async function solved(p: Problem, given?: Float32Array): Promise<Chosen> {
  const level = poisoned('f32', [p.n, p.k]);
  const keep = given ? f32([p.n, p.k], given.slice()) : poisoned('f32', [p.n, p.k]);
  gptqOps.sparseSolve(rt, inputs(p, p.u), { level, keep }, { ...typeParams(p.type), fixed: given ? 1 : 0 });
  await rt.sync();
  return { level, keep };
}

function inverse(a: Float64Array, n: number): Float64Array {
  const left = Float64Array.from(a);
  const right = new Float64Array(n * n);
  for (let i = 0; i < n; i++) right[i * n + i] = 1;
  for (let c = 0; c < n; c++) {
    const d = left[c * n + c]!; // positive definite: no pivoting
    for (const side of [left, right]) for (let j = 0; j < n; j++) side[c * n + j]! /= d;
    for (let r = 0; r < n; r++) {
      const f = left[r * n + c]!;
      if (r === c || f === 0) continue;
      for (const side of [left, right]) for (let j = 0; j < n; j++) side[r * n + j]! -= f * side[c * n + j]!;
    }
  }
  return right;
}

/** Sets weight j to `value` and the later ones to what is then best; returns what that costs. */
function settle(w: Float64Array, inv: Float64Array, j: number, value: number, last: number): number {
  const k = w.length;
  const d = inv[j * k + j]!;
  const error = (w[j]! - value) / d;
  for (let i = j; i < last; i++) w[i]! -= error * inv[j * k + i]!;
  return error * error * d;
}

function eliminate(inv: Float64Array, k: number, j: number): void {
  const d = inv[j * k + j]!;
  const column = Float64Array.from({ length: k }, (_, a) => inv[a * k + j]!);
  for (let a = 0; a < k; a++) for (let b = 0; b < k; b++) inv[a * k + b]! -= (column[a]! * column[b]!) / d;
}

/** The row's weight of column j and level q, and the nearest level of a weight. */
function grid(p: Problem, row: number) {
  const at = (j: number) => row * p.groups + Math.floor((j * p.groups) / p.k);
  const [low, high] = p.type.signed
    ? [-(2 ** (p.type.bits - 1)), 2 ** (p.type.bits - 1) - 1]
    : [0, 2 ** p.type.bits - 1];
  return {
    weight: (j: number, q: number) => (q - p.zero[at(j)]!) * p.scale[at(j)]!,
    place: (j: number, w: number) => Math.min(Math.max(w / p.scale[at(j)]! + p.zero[at(j)]!, low), high),
    zero: (j: number) => p.zero[at(j)]!,
  };
}

function costs(p: Problem, level: ArrayLike<number>): number[] {
  return Array.from({ length: p.n }, (_, row) => {
    const g = grid(p, row);
    const error = Float64Array.from(
      { length: p.k },
      (_, j) => g.weight(j, level[row * p.k + j]!) - p.t[row * p.k + j]!,
    );
    let sum = 0;
    for (let i = 0; i < p.k; i++) for (let j = 0; j < p.k; j++) sum += error[i]! * p.m[i * p.k + j]! * error[j]!;
    return sum;
  });
}

const total = (list: readonly number[]): number => list.reduce((a, b) => a + b, 0);

/** Two of every four stay, and the others' level is the zero. */
function assertSparse(p: Problem, { level, keep }: Chosen): void {
  const [levels, kept] = [typed<Float32Array>(level), typed<Float32Array>(keep)];
  for (let row = 0; row < p.n; row++)
    for (let j = 0; j < p.k; j += 4) {
      const four = kept.subarray(row * p.k + j, row * p.k + j + 4);
      assert.equal(
        four.reduce((a, b) => a + b, 0),
        2,
      );
      for (let c = 0; c < 4; c++) {
        assert.ok(four[c] === 0 || four[c] === 1);
        if (four[c] === 0) assert.equal(levels[row * p.k + j + c], grid(p, row).zero(j + c));
      }
    }
}

test('gptq_sparse_solve takes the pair that optimal brain surgery finds cheapest, and its codes', async () => {
  for (const [n, k, groups, name] of [
    [6, 4, 1, 'i4'],
    [5, 16, 2, 'i2'],
    [4, 40, 5, 'u3'],
    [2, 148, 1, 'i4'],
  ] as const) {
    const p = await problem(n, k, groups, name, 11 * k);
    const chosen = await solved(p);
    assertSparse(p, chosen);
    const [levels, kept] = [typed<Float32Array>(chosen.level), typed<Float32Array>(chosen.keep)];
    for (let row = 0; row < n; row++) {
      const g = grid(p, row);
      const inv = inverse(p.m, k);
      const w = Float64Array.from(p.t.subarray(row * k, (row + 1) * k));
      let paid = 0;
      for (let j = 0; j < k; j += 4) {
        const price = (pair: readonly number[], levelOf?: (c: number) => number): number => {
          const [trial, left] = [w.slice(), inv.slice()];
          let sum = 0;
          for (let c = j; c < j + 4; c++) {
            const place = g.place(c, trial[c]!);
            const q = levelOf ? levelOf(c) : Math.round(place);
            sum += settle(trial, left, c, pair.includes(c - j) ? g.weight(c, q) : 0, j + 4);
            eliminate(left, k, c);
          }
          return sum;
        };
        const mine = PAIRS.find((pair) => pair.every((c) => kept[row * k + j + c] === 1))!;
        const got = price(mine, (c) => levels[row * k + c]!);
        // f32 along K columns against f64: the sums agree to some 1e-4, and so do pairs that are as good.
        const best = Math.min(...PAIRS.map((pair) => price(pair)));
        assert.ok(
          got <= best * (1 + 1e-3) + 1e-9,
          `${name} row ${row} column ${j}: pair ${mine} costs ${got}, not ${best}`,
        );
        for (let c = j; c < j + 4; c++) {
          if (kept[row * k + c] === 1) {
            const off = Math.abs(levels[row * k + c]! - g.place(c, w[c]!));
            assert.ok(off <= 0.5 + 1e-3, `${name} row ${row} column ${c}: ${off} from the nearest level`);
          }
          paid += settle(w, inv, c, kept[row * k + c] === 1 ? g.weight(c, levels[row * k + c]!) : 0, k);
          eliminate(inv, k, c);
        }
      }
      // What the walk pays is the whole: (What - T) M (What - T)ᵀ.
      assert.ok(Math.abs(paid - costs(p, levels)[row]!) <= 1e-6 * paid);
    }
  }
});

/** The two largest of every four. */
function byMagnitude(p: Problem): Float32Array {
  const keep = new Float32Array(p.t.length);
  for (let j = 0; j < keep.length; j += 4) {
    const order = [0, 1, 2, 3].sort((a, b) => Math.abs(p.t[j + b]!) - Math.abs(p.t[j + a]!) || a - b);
    for (const c of order.slice(0, 2)) keep[j + c!] = 1;
  }
  return keep;
}

test('a given choice of pairs stays, and costs more than the one that is made', async () => {
  for (const seed of [1, 2, 3]) {
    const p = await problem(16, 64, 2, 'i4', seed);
    const given = byMagnitude(p);
    const fixed = await solved(p, given);
    assertSparse(p, fixed);
    assert.deepEqual(typed(fixed.keep), given);
    const free = await solved(p);
    const [chosen, magnitude] = [costs(p, typed(free.level)), costs(p, typed(fixed.level))].map(total) as [
      number,
      number,
    ];
    assert.ok(chosen < 0.8 * magnitude, `${chosen} against ${magnitude}`);
  }
});

test('gptq_sparse_descend lowers the sum, swaps pairs, and ends', async () => {
  for (const name of ['i4', 'u3']) {
    const p = await problem(8, 148, 1, name, 5);
    const chosen = await solved(p);
    const before = typed<Float32Array>(chosen.keep).slice();
    const changed = poisoned('f64', [1]);
    let last = costs(p, typed(chosen.level));
    const first = total(last);
    let moves = Number.POSITIVE_INFINITY;
    for (let sweep = 0; sweep < 60 && moves > 0; sweep++) {
      gptqOps.sparseDescend(rt, inputs(p, p.metric), { ...chosen, changed }, { ...typeParams(p.type), sweeps: 1 });
      await rt.sync();
      assertSparse(p, chosen);
      const now = costs(p, typed(chosen.level));
      // The gradient is f32: what seems to gain less than its rounding may lose that much.
      for (const [row, cost] of now.entries())
        assert.ok(cost <= last[row]! * (1 + 1e-5), `${name} row ${row}, sweep ${sweep}`);
      last = now;
      moves = typed<Float64Array>(changed)[0]!;
    }
    assert.equal(moves, 0);
    assert.ok(total(last) < 0.9 * first, `${name}: ${total(last)} from ${first}`);
    const swapped = typed<Float32Array>(chosen.keep).filter((value, i) => value !== before[i]).length;
    assert.ok(swapped > 0);
    // No single code of those that stay can be improved: a sweep would have found it.
    const levels = typed<Float32Array>(chosen.level);
    for (let row = 0; row < p.n; row++)
      for (let j = 0; j < p.k; j += 9) {
        if (typed<Float32Array>(chosen.keep)[row * p.k + j] === 0) continue;
        for (const by of [-1, 1]) {
          const other = levels.slice();
          const q = other[row * p.k + j]! + by;
          if (Math.round(grid(p, row).place(j, grid(p, row).weight(j, q))) !== q) continue;
          other[row * p.k + j] = q;
          assert.ok(costs(p, other)[row]! >= last[row]! * (1 - 1e-5), `${name} row ${row} column ${j}`);
        }
      }
  }
});

test('a given choice stays in the sweeps too', async () => {
  const p = await problem(8, 64, 2, 'i4', 9);
  const given = byMagnitude(p);
  const chosen = await solved(p, given);
  const before = total(costs(p, typed(chosen.level)));
  const params = { ...typeParams(p.type), sweeps: 10, fixed: 1 };
  gptqOps.sparseDescend(rt, inputs(p, p.metric), { ...chosen, changed: poisoned('f64', [1]) }, params);
  await rt.sync();
  assert.deepEqual(typed(chosen.keep), given);
  assertSparse(p, chosen);
  assert.ok(total(costs(p, typed(chosen.level))) < before);
});

test('gptq_prune leaves the walk without rounding', async () => {
  const p = await problem(5, 40, 1, 'i4', 4);
  const [w, keep] = [poisoned('f32', [5, 40]), poisoned('f32', [5, 40])];
  gptqOps.prune(rt, f32([5, 40], p.t), p.u, w, keep);
  await rt.sync();
  const kept = typed<Float32Array>(keep);
  for (let row = 0; row < 5; row++) {
    const inv = inverse(p.m, 40);
    const rest = Float64Array.from(p.t.subarray(row * 40, (row + 1) * 40));
    for (let j = 0; j < 40; j++) {
      const value = kept[row * 40 + j] === 1 ? rest[j]! : 0;
      assert.ok(Math.abs(typed<Float32Array>(w)[row * 40 + j]! - value) <= 1e-4 * (1 + Math.abs(value)));
      settle(rest, inv, j, value, 40);
      eliminate(inv, 40, j);
    }
  }
  for (let j = 0; j < kept.length; j += 4)
    assert.equal(
      kept.subarray(j, j + 4).reduce((a, b) => a + b),
      2,
    );
});

test('prune_magnitude keeps the two largest, the left ones of equal ones, and what is no number', async () => {
  const values = Float32Array.of(
    1,
    -3,
    2,
    0.5,
    1,
    1,
    -1,
    1,
    0,
    0,
    0,
    0,
    0.25,
    Number.NaN,
    4,
    8,
    -2,
    5,
    5,
    -5,
    7,
    0,
    0,
    -8,
  );
  for (const dtype of ['f32', 'f16', 'bf16'] as const) {
    const w = poisoned(dtype, [2, 12]);
    ops.cast(rt, f32([2, 12], values), w);
    const [pruned, mask] = [poisoned('f32', [2, 12]), poisoned('u8', [2, 2])];
    ops.pruneMagnitude(rt, w, { pruned, mask });
    await rt.sync();
    // Of the four with a NaN the first two are named.
    assert.deepEqual([...mask.bytes()], [0b00110110, 0b0011, 0b01100011, 0b1001]);
    const got = [...typed<Float32Array>(pruned)];
    assert.deepEqual(got.slice(0, 12), [0, -3, 2, 0, 1, 1, 0, 0, 0, 0, 0, 0]);
    assert.ok(Number.isNaN(got[13]));
    assert.deepEqual(got.slice(16), [0, 5, 5, 0, 7, 0, 0, -8]);
  }
});
