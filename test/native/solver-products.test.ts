import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { f32, poisoned, Random, typed, U32, U64 } from './support.js';

/** gemm, syrk and the triangular functions of native/cpu/linalg, which solvers call from C++. */
const rt = createRuntime(2);

function matrix(random: Random, dtype: 'f32' | 'f64', count: number): Float32Array | Float64Array {
  return dtype === 'f32' ? random.normals(count) : Float64Array.from({ length: count }, () => random.normal());
}

/** Compares c[i][j] with `start` + alpha * the chain product(i, j, p) over p < k, in f64, for the given places. */
function check(
  what: string,
  dtype: 'f32' | 'f64',
  places: Iterable<readonly [number, number]>,
  got: (i: number, j: number) => number,
  start: (i: number, j: number) => number,
  k: number,
  product: (i: number, j: number, p: number) => number,
): void {
  const [unit, block] = dtype === 'f32' ? [U32, 512] : [U64, 256];
  // As in linalg.test.ts: a chain of min(k, block) fma, one addition a block. The f64 reference rounds k times itself.
  const roundings = Math.min(k, block) + Math.ceil(k / block) + 2 + (dtype === 'f64' ? k + 1 : 0);
  for (const [i, j] of places) {
    let sum = start(i, j);
    let size = Math.abs(sum);
    for (let p = 0; p < k; p++) {
      const term = product(i, j, p);
      sum += term;
      size += Math.abs(term);
    }
    const bound = 1.01 * roundings * unit * size;
    assert.ok(Math.abs(got(i, j) - sum) <= bound, `${what} [${i},${j}]: ${got(i, j)}, not ${sum} +- ${bound}`);
  }
}

function* everywhere(m: number, n: number): Generator<readonly [number, number]> {
  for (let i = 0; i < m; i++) for (let j = 0; j < n; j++) yield [i, j];
}

test('gemm: both dtypes, all transposes, alpha and beta', async () => {
  const random = new Random(1);
  for (const dtype of ['f32', 'f64'] as const)
    for (const [transA, transB] of [
      [false, false],
      [false, true],
      [true, false],
      [true, true],
    ] as const)
      for (const [alpha, beta] of [
        [1, 0],
        [-1, 1],
        [2, 0.5],
      ] as const) {
        const [m, n, k] = [random.integer(1, 130), random.integer(1, 90), random.integer(1, 1100)];
        const [a, b, c] = [m * k, k * n, m * n].map((count) => matrix(random, dtype, count));
        const at = fromTyped(dtype, transA ? [k, m] : [m, k], a!);
        const bt = fromTyped(dtype, transB ? [n, k] : [k, n], b!);
        const ct = beta === 0 ? poisoned(dtype, [m, n]) : fromTyped(dtype, [m, n], c!);
        rt.enqueue('gemm', [at, bt], [ct], { alpha, beta, transA, transB });
        await rt.sync();
        const out = typed<Float64Array>(ct);
        check(
          `gemm ${dtype} ${transA} ${transB} ${alpha} ${beta}`,
          dtype,
          everywhere(m, n),
          (i, j) => out[i * n + j]!,
          (i, j) => (beta === 0 ? 0 : beta * c![i * n + j]!),
          k,
          (i, j, p) => alpha * a![transA ? p * m + i : i * k + p]! * b![transB ? j * k + p : p * n + j]!,
        );
      }
});

test('gemm and gram beyond one packing buffer (4096 rows or columns)', async () => {
  const random = new Random(2);
  for (const [m, n] of [
    [70, 4200],
    [4200, 70],
  ] as const) {
    const k = 530;
    const [a, b] = [random.normals(m * k), random.normals(n * k)];
    const y = poisoned('f32', [m, n]);
    ops.linear(rt, f32([m, k], a), f32([n, k], b), undefined, y);
    await rt.sync();
    const places = Array.from({ length: 20000 }, () => [random.integer(0, m - 1), random.integer(0, n - 1)] as const);
    const out = typed(y);
    assert.ok(out.every(Number.isFinite));
    const product = (i: number, j: number, p: number) => a[i * k + p]! * b[j * k + p]!;
    check(
      'linear',
      'f32',
      places,
      (i, j) => out[i * n + j]!,
      () => 0,
      k,
      product,
    );
  }
  const [t, k] = [513, 4200];
  const x = random.normals(t * k);
  const h = poisoned('f64', [k, k]);
  ops.zero(rt, h);
  ops.gramAccumulate(rt, f32([t, k], x), h);
  await rt.sync();
  const out = typed<Float64Array>(h);
  const places = Array.from({ length: 20000 }, () => [random.integer(0, k - 1), random.integer(0, k - 1)] as const);
  check(
    'gram',
    'f32',
    places,
    (i, j) => out[i * k + j]!,
    () => 0,
    t,
    (i, j, p) => x[p * k + i]! * x[p * k + j]!,
  );
  for (const [i, j] of places) assert.equal(out[i * k + j], out[j * k + i]);
});

test('syrk reads the lower triangle and writes a symmetric matrix', async () => {
  const random = new Random(3);
  for (const dtype of ['f32', 'f64'] as const)
    for (const transA of [false, true])
      for (const beta of [0, 1]) {
        const [n, k] = [random.integer(30, 150), random.integer(1, 600)];
        const [a, c] = [matrix(random, dtype, n * k), matrix(random, dtype, n * n)];
        for (let i = 0; i < n; i++) for (let j = beta === 0 ? 0 : i + 1; j < n; j++) c[i * n + j] = Number.NaN; // is never read
        const ct = fromTyped(dtype, [n, n], c);
        rt.enqueue('syrk', [fromTyped(dtype, transA ? [k, n] : [n, k], a)], [ct], { alpha: -1, beta, transA });
        await rt.sync();
        const out = typed<Float64Array>(ct);
        const lower = (i: number, j: number) => c[Math.max(i, j) * n + Math.min(i, j)]!;
        const element = (i: number, p: number) => a[transA ? p * n + i : i * k + p]!;
        check(
          'syrk',
          dtype,
          everywhere(n, n),
          (i, j) => out[i * n + j]!,
          (i, j) => (beta === 0 ? 0 : lower(i, j)),
          k,
          (i, j, p) => -element(i, p) * element(j, p),
        );
        for (const [i, j] of everywhere(n, n)) assert.equal(out[i * n + j], out[j * n + i]);
      }
});

/** A well-conditioned lower triangular matrix with NaN above the diagonal, where nobody is to look. */
function triangle(random: Random, n: number): { tensor: Tensor; at: (i: number, j: number) => number } {
  const data = Float64Array.from({ length: n * n }, (_, index) => {
    const [i, j] = [Math.floor(index / n), index % n];
    return j > i ? Number.NaN : i === j ? 1 + random.uniform() : random.normal() / Math.sqrt(n);
  });
  return { tensor: fromTyped('f64', [n, n], data), at: (i, j) => (j > i ? 0 : data[i * n + j]!) };
}

test('triangular inverse: L X = 1 within the bound, the upper part left alone', async () => {
  const random = new Random(4);
  for (const n of [1, 17, 64, 65, 129, 200]) {
    const { tensor, at } = triangle(random, n);
    rt.enqueue('triangular_inverse', [], [tensor]);
    await rt.sync();
    const x = typed<Float64Array>(tensor);
    for (let i = 0; i < n; i++)
      for (let j = 0; j < n; j++) {
        if (j > i) {
          assert.ok(Number.isNaN(x[i * n + j]));
          continue;
        }
        // |X L - 1| of a recursive inverse is bounded by c n u |X||L||X||L| (Du Croz & Higham 1992, section 3); with these
        // matrices the last factors are small, and 40 n u (|L||X|) leaves room for them.
        let [sum, size] = [0, 1];
        for (let p = j; p <= i; p++) {
          sum += at(i, p) * x[p * n + j]!;
          size += Math.abs(at(i, p) * x[p * n + j]!);
        }
        assert.ok(Math.abs(sum - (i === j ? 1 : 0)) <= 40 * n * U64 * size, `n=${n} [${i},${j}] ${sum}`);
      }
  }
});

test('triangular solves: both sides, both transposes', async () => {
  const random = new Random(5);
  for (const n of [1, 30, 64, 100, 190])
    for (const side of ['left', 'right'] as const)
      for (const trans of [false, true]) {
        const { tensor, at } = triangle(random, n);
        const [rows, cols] = side === 'left' ? [n, 37] : [37, n];
        const b = Float64Array.from({ length: rows * cols }, () => random.normal());
        const xt = fromTyped('f64', [rows, cols], b);
        rt.enqueue('triangular_solve', [tensor], [xt], { side, trans });
        await rt.sync();
        const x = typed<Float64Array>(xt);
        const l = trans ? (i: number, j: number) => at(j, i) : at;
        for (const [i, j] of everywhere(rows, cols)) {
          let [sum, size] = [0, Math.abs(b[i * cols + j]!)];
          for (let p = 0; p < n; p++) {
            const term = side === 'left' ? l(i, p) * x[p * cols + j]! : x[i * cols + p]! * l(p, j);
            sum += term;
            size += Math.abs(term);
          }
          // Substitution is backward stable row by row: |L X - B| <= gamma(n) |L||X| (Higham, theorem 8.5); as much again
          // for this sum, and a few roundings for the blocks.
          const bound = 2.1 * (n + 4) * U64 * size;
          assert.ok(Math.abs(sum - b[i * cols + j]!) <= bound, `${side} ${trans} n=${n} [${i},${j}]`);
        }
      }
});
