import { allocate, createRuntime, fromTyped, typed } from '../../native/binding.js';
import { gptqOps } from '../../native/gptq-ops.js';
import { type QuantType, valueRange } from '../../src/core/quant-type.js';

export const rt = createRuntime(2);

/** Deterministic normal numbers. */
export function normals(seed: number): () => number {
  let state = seed >>> 0;
  const uniform = () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return (state + 0.5) / 2 ** 32;
  };
  return () => Math.sqrt(-2 * Math.log(uniform())) * Math.cos(2 * Math.PI * uniform());
}

export interface Problem {
  n: number;
  k: number;
  w: Float32Array;
  h: Float64Array;
}

/** Correlated inputs with a few strong channels, like a transformer's. */
export function problem(n: number, k: number, seed: number): Problem {
  const next = normals(seed);
  const rows = 3 * k;
  const x = new Float64Array(rows * k);
  for (let r = 0; r < rows; r++) {
    const shared = next();
    for (let c = 0; c < k; c++) x[r * k + c] = (next() + 0.7 * shared) * (c % 7 === 0 ? 4 : 1);
  }
  const h = new Float64Array(k * k);
  for (let r = 0; r < rows; r++)
    for (let a = 0; a < k; a++) for (let b = 0; b < k; b++) h[a * k + b]! += x[r * k + a]! * x[r * k + b]!;
  return { n, k, w: Float32Array.from({ length: n * k }, next), h };
}

export const f32 = (shape: number[], data?: Float32Array) =>
  data ? fromTyped('f32', shape, data) : allocate('f32', shape);
export const i32 = (data: Int32Array) => fromTyped('i32', [data.length], data);

export async function factor(p: Problem, order: Int32Array, damp = 0.01) {
  const { k } = p;
  const out = { u: f32([k, k]), m: f32([k, k]), dead: allocate('u8', [k]), info: allocate('f64', [3]) };
  gptqOps.factor(rt, fromTyped('f64', [k, k], p.h), i32(order), out, damp);
  await rt.sync();
  return out;
}

/** Naive fp64 inverse by Gauss-Jordan: shares nothing with a Cholesky factor. */

/** tr((What - T) M (What - T)ᵀ) of one row, fp64. */
export function cost(m: ArrayLike<number>, error: Float64Array): number {
  const k = error.length;
  let sum = 0;
  for (let i = 0; i < k; i++) for (let j = 0; j < k; j++) sum += error[i]! * m[i * k + j]! * error[j]!;
  return sum;
}

export async function rounded(n: number, k: number, groups: number, type: QuantType, seed: number) {
  const p = problem(n, k, seed);
  const order = Int32Array.from({ length: k }, (_, i) => i);
  const { m } = await factor(p, order);
  const group = order.map((c) => Math.floor(c / (k / groups)));
  const scale = f32([n, groups]);
  typed(scale).fill(0.5);
  const zero = f32([n, groups]);
  typed(zero).fill(type.kind === 'int' && !type.signed ? 2 ** (type.bits - 1) : 0);
  const level = f32([n, k]);
  const { min, max } = valueRange(type);
  for (let i = 0; i < n * k; i++)
    typed(level)[i] = Math.min(Math.max(Math.round(p.w[i]! / 0.5) + typed(zero)[0]!, min), max);
  const inputs = { t: f32([n, k], p.w), matrix: m, scale, zero, group: i32(group) };
  const errorOf = (r: number, change?: { j: number; by: number }, scales: ArrayLike<number> = typed(scale)) =>
    Float64Array.from({ length: k }, (_, j) => {
      const g = r * groups + group[j]!;
      const moved = change?.j === j ? change.by : 0;
      return (typed(level)[r * k + j]! + moved - typed(zero)[g]!) * scales[g]! - p.w[r * k + j]!;
    });
  return { inputs, level, scale, m: typed(m), errorOf, min, max };
}
