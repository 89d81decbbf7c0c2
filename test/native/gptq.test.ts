import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, fromTyped, type Tensor, typed } from '../../native/binding.js';
import { gptqOps } from '../../native/gptq-ops.js';
import { ops } from '../../native/ops.js';
import { type QuantType, quantType, typeParams, valueRange } from '../../src/core/quant-type.js';
import { f32, factor, i32, normals, type Problem, problem, rt } from './gptq-problem.js';

/** Naive fp64 inverse by Gauss-Jordan: shares nothing with a Cholesky factor. */
function inverse(a: Float64Array, n: number): Float64Array {
  const left = Float64Array.from(a);
  const right = new Float64Array(n * n);
  for (let i = 0; i < n; i++) right[i * n + i] = 1;
  for (let c = 0; c < n; c++) {
    let pivot = c;
    for (let r = c; r < n; r++) if (Math.abs(left[r * n + c]!) > Math.abs(left[pivot * n + c]!)) pivot = r;
    for (const m of [left, right])
      for (let j = 0; j < n; j++) [m[c * n + j], m[pivot * n + j]] = [m[pivot * n + j]!, m[c * n + j]!];
    const d = left[c * n + c]!;
    for (const m of [left, right]) for (let j = 0; j < n; j++) m[c * n + j]! /= d;
    for (let r = 0; r < n; r++) {
      const f = left[r * n + c]!;
      if (r === c || f === 0) continue;
      for (const m of [left, right]) for (let j = 0; j < n; j++) m[r * n + j]! -= f * m[c * n + j]!;
    }
  }
  return right;
}

/** H in solving order, damped. */
function damped(p: Problem, order: Int32Array, damp = 0.01): Float64Array {
  const { k, h } = p;
  let mean = 0;
  for (let i = 0; i < k; i++) mean += h[i * k + i]! / k;
  const m = new Float64Array(k * k);
  for (let i = 0; i < k; i++)
    for (let j = 0; j < k; j++) m[i * k + j] = h[order[i]! * k + order[j]!]! + (i === j ? damp * mean : 0);
  return m;
}

/** Every level that a type has, ascending. */
function levels(type: QuantType): number[] {
  const { min, max } = valueRange(type);
  if (type.kind === 'int') return Array.from({ length: max - min + 1 }, (_, i) => min + i);
  throw new Error('integers only');
}

function reversed(k: number): Int32Array {
  return Int32Array.from({ length: k }, (_, i) => (i * 7 + 3) % k);
}

test('gptq_factor: UᵀU is the inverse of the damped Hessian in solving order', async () => {
  for (const k of [1, 5, 64, 131]) {
    const p = problem(1, k, k);
    const order = k % 7 === 0 ? Int32Array.from({ length: k }, (_, i) => k - 1 - i) : reversed(k);
    const { u, m, info } = await factor(p, order);
    const reference = damped(p, order);
    const uu = typed(u);
    for (let i = 0; i < k; i++)
      for (let j = 0; j < k; j++) {
        // M is the fp64 value rounded once to f32.
        assert.ok(Math.abs(typed(m)[i * k + j]! - reference[i * k + j]!) <= 2 ** -23 * Math.abs(reference[i * k + j]!));
        if (j < i) assert.equal(uu[i * k + j], 0);
        // sum_r (M UᵀU)[i][j]: U is rounded to f32 (2^-24 relative); the product of K terms of size |M||U||U| carries it.
        let sum = 0;
        let size = 0;
        for (let a = 0; a < k; a++) {
          let v = 0;
          let magnitude = 0;
          for (let r = 0; r <= Math.min(a, j); r++) {
            v += uu[r * k + a]! * uu[r * k + j]!;
            magnitude += Math.abs(uu[r * k + a]! * uu[r * k + j]!);
          }
          sum += reference[i * k + a]! * v;
          size += Math.abs(reference[i * k + a]!) * magnitude;
        }
        assert.ok(Math.abs(sum - (i === j ? 1 : 0)) <= 4 * 2 ** -23 * size + 1e-9, `k ${k} (${i},${j}): ${sum}`);
      }
    assert.equal(typed<Float64Array>(info)[0], 0.01);
  }
});

test('gptq_factor: dead channels, escalating damping, and NaN', async () => {
  const k = 8;
  const p = problem(1, k, 1);
  for (let i = 0; i < k; i++) p.h[3 * k + i] = p.h[i * k + 3] = 0;
  const order = Int32Array.from({ length: k }, (_, i) => i);
  const { dead } = await factor(p, order);
  assert.deepEqual([...typed<Uint8Array>(dead)], [0, 0, 0, 1, 0, 0, 0, 0]);
  // Indefinite: needs damping above its most negative eigenvalue, -1 against a mean diagonal of 1.
  const indefinite: Problem = { n: 1, k: 2, w: new Float32Array(2), h: Float64Array.of(1, 2, 2, 1) };
  const raised = await factor(indefinite, Int32Array.of(0, 1));
  const [fraction, attempts] = typed<Float64Array>(raised.info) as unknown as [number, number];
  assert.ok(fraction > 1 && attempts > 1);
  p.h[0] = Number.NaN;
  await assert.rejects(factor(p, order), { code: 'LPQ_NATIVE_NUMERICS' });
});

test('gptq_solve equals optimal brain surgery with explicit inverse updates', async () => {
  for (const [n, k, groupSize, name] of [
    [3, 16, 16, 'i4'],
    [5, 40, 8, 'u3'],
    [2, 150, 50, 'i2'],
  ] as const) {
    const type = quantType(name);
    const p = problem(n, k, 7 * k);
    const order = k % 7 === 0 ? Int32Array.from({ length: k }, (_, i) => k - 1 - i) : reversed(k);
    const groups = k / groupSize;
    const { u } = await factor(p, order);
    const group = order.map((c) => Math.floor(c / groupSize));
    const scale = Float32Array.from({ length: n * groups }, (_, i) => 0.4 + 0.03 * (i % 5));
    const zero = Float32Array.from({ length: n * groups }, () => (type.kind === 'int' && type.signed ? 0 : 4));
    const t = new Float32Array(n * k);
    for (let r = 0; r < n; r++) for (let j = 0; j < k; j++) t[r * k + j] = p.w[r * k + order[j]!]!;
    const level = f32([n, k]);
    typed(level).fill(Number.NaN);
    gptqOps.solve(
      rt,
      { t: f32([n, k], t), matrix: u, scale: f32([n, groups], scale), zero: f32([n, groups], zero), group: i32(group) },
      level,
      typeParams(type),
    );
    await rt.sync();
    const grid = levels(type);
    let compared = 0;
    for (let r = 0; r < n; r++) {
      const inv = inverse(damped(p, order), k);
      const w = Float64Array.from(t.subarray(r * k, (r + 1) * k));
      for (let j = 0; j < k; j++) {
        const s = scale[r * groups + group[j]!]!;
        const z = zero[r * groups + group[j]!]!;
        const x = Math.min(Math.max(w[j]! / s + z, grid[0]!), grid.at(-1)!);
        // So near a tie f32 may round the other way, and every later column of the row follows it.
        if (Math.abs(x - Math.floor(x) - 0.5) < 2e-5) break;
        compared++;
        const q = Math.round(x) + 0; // no -0
        assert.equal(typed(level)[r * k + j], q, `${name} row ${r} column ${j}`);
        const d = inv[j * k + j]!;
        const error = (w[j]! - (q - z) * s) / d;
        for (let i = j; i < k; i++) w[i]! -= error * inv[j * k + i]!;
        const column = Float64Array.from({ length: k }, (_, a) => inv[a * k + j]!);
        for (let a = 0; a < k; a++) for (let b = 0; b < k; b++) inv[a * k + b]! -= (column[a]! * column[b]!) / d;
      }
    }
    assert.ok(compared > 0.9 * n * k, `${compared} of ${n * k} columns could be compared`);
  }
});
test('gptq_clip picks the candidate that an exhaustive fp64 search finds', async () => {
  const [n, k, groups, steps] = [4, 32, 2, 40];
  for (const [name, symmetric, bothSigns] of [
    ['i4', true, false],
    ['i2', true, true],
    ['u3', false, false],
  ] as const) {
    const type = quantType(name);
    const p = problem(n, k, 23);
    const order = Int32Array.from({ length: k }, (_, i) => i);
    const { m } = await factor(p, order);
    const group = order.map((c) => Math.floor(c / (k / groups)));
    const scale = f32([n, groups]);
    const zero = f32([n, groups]);
    gptqOps.clip(
      rt,
      f32([n, k], p.w),
      m,
      i32(group),
      { scale, zero },
      { ...typeParams(type), symmetric, bothSigns, steps },
    );
    await rt.sync();
    const { min, max } = valueRange(type);
    const size = k / groups;
    const block = (g: number, error: Float64Array) => {
      let sum = 0;
      for (let i = 0; i < size; i++)
        for (let j = 0; j < size; j++) sum += error[i]! * typed(m)[(g * size + i) * k + g * size + j]! * error[j]!;
      return sum;
    };
    for (let r = 0; r < n; r++)
      for (let g = 0; g < groups; g++) {
        const w = p.w.subarray(r * k + g * size, r * k + (g + 1) * size);
        const tried = (s: number, z: number) =>
          block(
            g,
            Float64Array.from(w, (x) => (Math.min(Math.max(rint(Math.fround(x / s)) + z, min), max) - z) * s - x),
          );
        const lo = Math.min(...w);
        const hi = Math.max(...w);
        let best = Number.POSITIVE_INFINITY;
        for (let i = 0; i < steps; i++)
          for (const sign of bothSigns ? [1, -1] : [1]) {
            const shrunk = 1 - 0.01 * i;
            if (symmetric) {
              const s = (sign * shrunk * 2 * Math.max(-lo, hi)) / (2 ** type.bits - 1);
              best = Math.min(best, tried(Math.fround(s), 0));
            } else {
              const s = Math.fround((shrunk * (Math.max(hi, 0) - Math.min(lo, 0))) / (2 ** type.bits - 1));
              best = Math.min(best, tried(s, Math.min(Math.max(rint((-shrunk * Math.min(lo, 0)) / s), 0), max)));
            }
          }
        const chosen = tried(typed(scale)[r * groups + g]!, typed(zero)[r * groups + g]!);
        // Costs are computed in f32: candidates closer than 1e-5 may be exchanged.
        assert.ok(chosen <= best * (1 + 1e-5), `${name} row ${r} group ${g}: ${chosen} against ${best}`);
      }
  }
});

/** Round half to even. */
function rint(x: number): number {
  const floor = Math.floor(x);
  const rest = x - floor;
  if (rest !== 0.5) return Math.round(x);
  return floor % 2 === 0 ? floor : floor + 1;
}

test('gptq_target goes the fraction alpha of the way to W C H⁻¹', async () => {
  const [n, k, alpha] = [3, 20, 0.25];
  const p = problem(n, k, 3);
  const next = normals(9);
  const c = Float64Array.from(p.h, (x) => x * (1 + 0.05 * next()));
  const order = reversed(k).map((x) => x);
  const shuffled = Int32Array.from(new Set([...order, ...Array.from({ length: k }, (_, i) => i)]));
  const { u, dead } = await factor(p, shuffled);
  const t = f32([n, k]);
  const bad = allocate('f64', [2]);
  const h = fromTyped('f64', [k, k], p.h);
  const drift: Tensor = fromTyped('f64', [k, k], c);
  ops.crossDrift(rt, h, drift);
  gptqOps.target(rt, f32([n, k], p.w), i32(shuffled), dead, { drift, u, alpha }, t, bad);
  const matrix = allocate('f32', [k, k]);
  gptqOps.correction(rt, drift, i32(shuffled), u, matrix);
  const same = f32([n, k]);
  gptqOps.target(rt, f32([n, k], p.w), i32(shuffled), dead, { matrix, alpha }, same, bad);
  await rt.sync();
  const identity = Int32Array.from({ length: k }, (_, i) => i);
  const inv = inverse(damped(p, identity), k);
  // Both multiply in fp32, in another order: sqrt(K cond) 2^-24 of the correction, below 1e-5 of it, which is a part of T.
  for (let i = 0; i < n * k; i++)
    assert.ok(Math.abs(typed(same)[i]! - typed(t)[i]!) <= 1e-5 * (1 + Math.abs(typed(t)[i]!)));
  for (let r = 0; r < n; r++) {
    const moved = new Float64Array(k);
    for (let j = 0; j < k; j++)
      for (let i = 0; i < k; i++) moved[j]! += p.w[r * k + i]! * (c[i * k + j]! - p.h[i * k + j]!);
    for (let j = 0; j < k; j++) {
      let step = 0;
      for (let i = 0; i < k; i++) step += moved[i]! * inv[i * k + shuffled[j]!]!;
      const expected = p.w[r * k + shuffled[j]!]! + alpha * step;
      // U is stored in f32; the damped condition number here is below 1e3: 1e3 * 2^-22 relative of the correction.
      assert.ok(
        Math.abs(typed(t)[r * k + j]! - expected) <= 1e-3 * Math.abs(alpha * step) + 1e-6 * Math.abs(expected) + 1e-6,
      );
    }
  }
});
