import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, fromTyped, typed } from '../../native/binding.js';
import { gptqOps } from '../../native/gptq-ops.js';
import { ops } from '../../native/ops.js';
import { decodeCode, type QuantType, quantType, typeParams } from '../../src/core/quant-type.js';
import { cost, f32, factor, i32, normals, problem, rounded, rt } from './gptq-problem.js';

/** A scale group of every column: groups of one size, in an order that mixes them. */
const mixed = (k: number, groups: number) => Int32Array.from({ length: k }, (_, j) => ((j * 7) % k) % groups);

/** Every number of a type. */
const valuesOf = (type: QuantType) => [
  ...new Set(Array.from({ length: 2 ** type.bits }, (_, code) => decodeCode(type, code))),
];

/** M of a problem, and a walk's inputs whose zeros differ by group. */
async function inputsOf(n: number, k: number, groups: number, type: QuantType, seed: number) {
  const p = problem(n, k, seed);
  const { m } = await factor(
    p,
    Int32Array.from({ length: k }, (_, i) => i),
  );
  const next = normals(seed + 1);
  const scale = Float32Array.from({ length: n * groups }, () => Math.fround(0.4 + 0.02 * next()));
  const middle = type.kind === 'int' && !type.signed ? 2 ** (type.bits - 1) : 0;
  const zero = Float32Array.from({ length: n * groups }, (_, i) => (middle ? middle + (i % 2) : 0));
  const group = mixed(k, groups);
  const values = valuesOf(type);
  const level = Float32Array.from(p.w, (w, i) => {
    const g = Math.floor(i / k) * groups + group[i % k]!;
    return nearest(values, w / scale[g]! + zero[g]!).value;
  });
  const tensors = {
    t: f32([n, k], p.w),
    matrix: m,
    scale: f32([n, groups], scale),
    zero: f32([n, groups], zero),
    group: i32(group),
  };
  return { p, m: typed(m), group, values, scale, zero, level, tensors };
}

/** The nearest value, and how much nearer than the second it is. */
function nearest(values: readonly number[], x: number): { value: number; margin: number } {
  const [first, second] = [...values].sort((a, b) => Math.abs(a - x) - Math.abs(b - x)) as [number, number];
  return { value: first, margin: Math.abs(second - x) - Math.abs(first - x) };
}

test('gptq_descend: a sweep gives every code its best value, given those before it', async () => {
  for (const [name, n, k, groups] of [
    ['i4', 5, 300, 4],
    ['u3', 3, 140, 2],
    ['f4e2m1', 4, 270, 3],
  ] as const) {
    const type = quantType(name);
    const { p, m, group, values, scale, zero, level, tensors } = await inputsOf(n, k, groups, type, 31);
    const out = f32([n, k], Float32Array.from(level));
    const changed = allocate('f64', [1]);
    gptqOps.descend(rt, tensors, out, changed, { ...typeParams(type), sweeps: 1 });
    await rt.sync();
    let [moved, compared] = [0, 0];
    for (let r = 0; r < n; r++) {
      const now = Float64Array.from(level.subarray(r * k, (r + 1) * k));
      const e = now.map(
        (v, j) => (v - zero[r * groups + group[j]!]!) * scale[r * groups + group[j]!]! - p.w[r * k + j]!,
      );
      for (let j = 0; j < k; j++) {
        const [s, z] = [scale[r * groups + group[j]!]!, zero[r * groups + group[j]!]!];
        let gradient = 0;
        let size = 0;
        for (let i = 0; i < k; i++) {
          gradient += e[i]! * m[i * k + j]!;
          size += Math.abs(e[i]! * m[i * k + j]!);
        }
        const { value, margin } = nearest(values, now[j]! - gradient / m[j * k + j]! / s);
        const got = typed(out)[r * k + j]!;
        // The gradient is a chain of k fma in fp32, of terms of this size; twice of it moves the margin.
        const unsure = (2 * k * 2 ** -24 * size) / m[j * k + j]! / Math.abs(s);
        if (margin > unsure) {
          assert.equal(got, value, `${name} row ${r} column ${j}`);
          compared++;
        }
        if (got !== now[j]) moved++;
        e[j] = (got - z) * s - p.w[r * k + j]!;
        now[j] = got;
      }
    }
    assert.ok(compared > 0.98 * n * k, `${compared} of ${n * k} codes could be compared`);
    assert.ok(moved > n, `${moved} codes moved`);
    assert.equal(typed<Float64Array>(changed)[0], moved);
  }
});

test('gptq_descend in bf16 lowers the error, and a sweep in fp32 then ends where fp32 alone does', async () => {
  const type = quantType('i4');
  const start = () => rounded(6, 260, 4, type, 12);
  const sum = ({ m, errorOf }: Awaited<ReturnType<typeof start>>) =>
    [...Array(6).keys()].reduce((all, r) => all + cost(m, errorOf(r)), 0);
  const [rough, exact] = [await start(), await start()];
  const before = sum(rough);
  const changed = allocate('f64', [1]);
  const params = { ...typeParams(type), sweeps: 4 };
  gptqOps.descend(rt, rough.inputs, rough.level, changed, { ...params, bf16: true });
  await rt.sync();
  assert.ok(sum(rough) < 0.9 * before);
  gptqOps.descend(rt, rough.inputs, rough.level, changed, { ...params, sweeps: 1 });
  gptqOps.descend(rt, exact.inputs, exact.level, changed, { ...params, sweeps: 5 });
  await rt.sync();
  // Two local minima of one problem: neither is better by more than a hundredth.
  assert.ok(Math.abs(sum(rough) / sum(exact) - 1) < 0.01, `${sum(rough)} against ${sum(exact)}`);
});

/** Solves A x = b by elimination with pivots. */
function solved(a: readonly (readonly number[])[], b: readonly number[]): number[] {
  const rows = a.map((line, i) => [...line, b[i]!]);
  for (let c = 0; c < rows.length; c++) {
    const pivot = rows.slice(c).reduce((best, row) => (Math.abs(row[c]!) > Math.abs(best[c]!) ? row : best));
    rows.splice(rows.indexOf(pivot), 1);
    rows.splice(c, 0, pivot);
    for (const row of rows)
      if (row !== pivot) {
        const factor = row[c]! / pivot[c]!;
        for (let j = c; j < row.length; j++) row[j]! -= factor * pivot[j]!;
      }
  }
  return rows.map((row, i) => row.at(-1)! / row[i]!);
}

test('gptq_refit solves the equations of a row, in fp32 and in bf16', async () => {
  for (const [name, n, k, groups] of [
    ['i4', 30, 96, 6],
    ['u3', 5, 90, 3],
    ['i4', 2, 560, 1],
  ] as const)
    for (const bf16 of [false, true]) {
      const type = quantType(name);
      const { p, m, group, scale, zero, level, tensors } = await inputsOf(n, k, groups, type, 17);
      const [levels, count] = [f32([n, k], level), allocate('f64', [1])];
      const tm = bf16 ? gptqOps.projected(rt, tensors) : undefined;
      gptqOps.refit(rt, tensors, levels, count, tm, bf16 ? { bf16: true } : {});
      await rt.sync();
      let usable = 0;
      for (let r = 0; r < n; r++) {
        const a = Array.from({ length: groups }, () => new Array<number>(groups).fill(0));
        const size = a.map((line) => [...line]);
        const b = new Array<number>(groups).fill(0);
        const v = Array.from({ length: k }, (_, j) => level[r * k + j]! - zero[r * groups + group[j]!]!);
        for (let i = 0; i < k; i++)
          for (let j = 0; j < k; j++) {
            a[group[i]!]![group[j]!]! += v[i]! * m[i * k + j]! * v[j]!;
            size[group[i]!]![group[j]!]! += Math.abs(v[i]! * m[i * k + j]! * v[j]!);
            b[group[i]!]! += v[i]! * m[i * k + j]! * p.w[r * k + j]!;
          }
        const best = solved(a, b);
        // Rows of which a scale would change too much stay.
        if (best.some((x, g) => x / scale[r * groups + g]! < 0.25 || x / scale[r * groups + g]! > 4)) continue;
        usable++;
        // A is off by its products' rounding: M to 2^-9 in bf16, chains of fp32 in both; b by chains of fp32.
        const relative = (bf16 ? 2 ** -9 : 0) + k * 2 ** -24;
        for (let g = 0; g < groups; g++) {
          const column = solved(
            a,
            best.map((_, h) => (h === g ? 1 : 0)),
          );
          let off = 1e-6 * Math.abs(best[g]!);
          for (let h = 0; h < groups; h++)
            for (let q = 0; q < groups; q++) off += Math.abs(column[h]!) * relative * size[h]![q]! * Math.abs(best[q]!);
          const got = typed(tensors.scale)[r * groups + g]!;
          assert.ok(Math.abs(got - best[g]!) <= 2 * off, `${name} row ${r} group ${g}: ${got}, not ${best[g]}`);
          assert.notEqual(got, scale[r * groups + g]);
        }
      }
      assert.equal(typed<Float64Array>(count)[0], usable);
      assert.ok(usable > n / 2);
    }
});

test('gptq_clip in bf16 chooses as fp32 does', async () => {
  const [n, k, groups] = [24, 400, 2];
  for (const [name, symmetric] of [
    ['i4', true],
    ['u3', false],
    ['i2', true],
  ] as const) {
    const type = quantType(name);
    const p = problem(n, k, 41);
    const { m } = await factor(
      p,
      Int32Array.from({ length: k }, (_, i) => i),
    );
    const group = mixed(k, groups);
    const params = { ...typeParams(type), symmetric, bothSigns: symmetric, steps: 76 };
    const [exact, rough] = [false, true].map((bf16) => {
      const out = { scale: f32([n, groups]), zero: f32([n, groups]) };
      gptqOps.clip(rt, f32([n, k], p.w), m, i32(group), out, bf16 ? { ...params, bf16 } : params);
      return out;
    });
    await rt.sync();
    const same = typed(exact!.scale).filter((s, i) => s === typed(rough!.scale)[i]).length;
    // Costs in bf16 are off by less than the eighth candidate is behind the first.
    assert.equal(same, n * groups, name);
  }
});

test('gptq_target and gptq_correction leave out only what is 0 of U, whatever the number of columns', async () => {
  // Over one block of 1024 columns; the order, and a few rows, tell on every part.
  const [n, k, alpha] = [2, 1100, 0.5];
  const next = normals(8);
  const order = Int32Array.from({ length: k }, (_, i) => (i * 7 + 3) % k);
  const w = Float32Array.from({ length: n * k }, next);
  const d = Float64Array.from({ length: k * k }, next);
  const u = new Float32Array(k * k);
  for (let i = 0; i < k; i++) for (let j = i; j < k; j++) u[i * k + j] = i === j ? 1 : 0.02 * next();
  const [t, same, bad] = [f32([n, k]), f32([n, k]), allocate('f64', [2])];
  const [drift, upper, matrix] = [fromTyped('f64', [k, k], d), f32([k, k], u), f32([k, k])];
  const dead = allocate('u8', [k]);
  ops.zero(rt, dead);
  gptqOps.target(rt, f32([n, k], w), i32(order), dead, { drift, u: upper, alpha }, t, bad);
  gptqOps.correction(rt, drift, i32(order), upper, matrix);
  gptqOps.target(rt, f32([n, k], w), i32(order), dead, { matrix, alpha }, same, bad);
  await rt.sync();
  for (let r = 0; r < n; r++) {
    const x = Array.from(order, (c) => w[r * k + c]!);
    const times = (from: readonly number[], at: (i: number, j: number) => number) => {
      const to = new Array<number>(k).fill(0);
      for (let i = 0; i < k; i++) for (let j = 0; j < k; j++) to[j]! += from[i]! * at(i, j);
      return to;
    };
    const y = times(x, (i, j) => d[order[i]! * k + order[j]!]!);
    const step = times(
      times(y, (i, j) => u[j * k + i]!),
      (i, j) => u[i * k + j]!,
    );
    const largest = Math.max(...step.map(Math.abs));
    for (let j = 0; j < k; j++)
      // Three sums of up to k terms in fp32, each no more than its rows' norms: a share of the largest step.
      for (const got of [t, same])
        assert.ok(Math.abs(typed(got)[r * k + j]! - x[j]! - alpha * step[j]!) <= 3 * Math.sqrt(k) * 2 ** -22 * largest);
  }
});
