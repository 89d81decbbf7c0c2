import assert from 'node:assert/strict';
import { execFileSync, spawnSync } from 'node:child_process';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import { fileURLToPath } from 'node:url';

const directory = mkdtempSync(path.join(tmpdir(), 'lpq-blas-'));
after(() => rmSync(directory, { recursive: true }));

// Multiplies with the addon in a process of its own and prints what happened. The product is above the size at which an
// external library is asked.
const root = path.join(path.dirname(fileURLToPath(import.meta.url)), '..', '..');
const script = `
const { createRuntime, fromTyped, allocate, typed } = await import(${JSON.stringify(path.join(root, 'native', 'binding.js'))});
const { ops } = await import(${JSON.stringify(path.join(root, 'native', 'ops.js'))});
const [t, n, k] = [260, 250, 240];
const x = Float32Array.from({ length: t * k }, (_, i) => (i % 17) - 8);
const w = Float32Array.from({ length: n * k }, (_, i) => (i % 13) - 6);
const y = allocate('f32', [t, n]);
const rt = createRuntime(2);
ops.linear(rt, fromTyped('f32', [t, k], x), fromTyped('f32', [n, k], w), undefined, y);
try {
  await rt.sync();
  let wrong = 0;
  for (let i = 0; i < t; i++)
    for (let j = 0; j < n; j++) {
      let sum = 0;
      for (let p = 0; p < k; p++) sum += x[i * k + p] * w[j * k + p];
      if (typed(y)[i * n + j] !== sum) wrong++;
    }
  console.log(JSON.stringify({ wrong }));
} catch (error) {
  console.log(JSON.stringify({ code: error.code, message: error.message }));
}
process.exit(0);`;

function run(env: Record<string, string>): { out: { wrong?: number; code?: string; message?: string }; err: string } {
  const child = spawnSync(process.execPath, ['--input-type=module', '-e', script], {
    env: { ...process.env, ...env },
    encoding: 'utf8',
  });
  return { out: JSON.parse(child.stdout), err: child.stderr };
}

test('LPQ_BLAS with an unknown name is refused', () => {
  const { out } = run({ LPQ_BLAS: 'mkl' });
  assert.equal(out.code, 'LPQ_NATIVE_BLAS');
  assert.match(out.message!, /LPQ_BLAS is 'mkl', not builtin or openblas/);
});

test('LPQ_BLAS=openblas without a usable OpenBLAS says what was searched', () => {
  // Two libraries of the right names that are none, found before any installed one.
  for (const name of ['libopenblas.so.0', 'libopenblas.so']) writeFileSync(path.join(directory, name), 'not a library');
  const { out } = run({ LPQ_BLAS: 'openblas', LD_LIBRARY_PATH: directory });
  // The loader goes on searching after a broken file, so that an installed library may still be found.
  if (out.wrong === undefined) {
    assert.equal(out.code, 'LPQ_NATIVE_BLAS');
    assert.match(out.message!, /no OpenBLAS can be loaded: .*libopenblas\.so\.0.*; .*libopenblas\.so/);
  } else assert.equal(out.wrong, 0);
});

test('LPQ_BLAS=openblas calls cblas_sgemm of the library that is found', () => {
  // A naive library with the CBLAS interface, which tells that it was called.
  const source = path.join(directory, 'cblas.cpp');
  writeFileSync(
    source,
    `#include <cstdio>
template <class T> static void product(int ta, int tb, int m, int n, int k, T alpha, const T* a, int lda, const T* b, int ldb, T beta, T* c, int ldc) {
  for (int i = 0; i < m; i++) for (int j = 0; j < n; j++) {
    T sum = 0;
    for (int p = 0; p < k; p++) sum += (ta == 112 ? a[p * lda + i] : a[i * lda + p]) * (tb == 112 ? b[j * ldb + p] : b[p * ldb + j]);
    c[i * ldc + j] = alpha * sum + (beta == 0 ? 0 : beta * c[i * ldc + j]);
  }
}
extern "C" void cblas_sgemm(int, int ta, int tb, int m, int n, int k, float alpha, const float* a, int lda, const float* b, int ldb, float beta, float* c, int ldc) {
  std::fprintf(stderr, "sgemm called\\n");
  product(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
extern "C" void cblas_dgemm(int, int ta, int tb, int m, int n, int k, double alpha, const double* a, int lda, const double* b, int ldb, double beta, double* c, int ldc) {
  product(ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}`,
  );
  const compiler = process.env.CXX ?? 'c++';
  execFileSync(compiler, ['-shared', '-fPIC', '-O1', source, '-o', path.join(directory, 'libopenblas.so.0')]);
  const used = run({ LPQ_BLAS: 'openblas', LD_LIBRARY_PATH: directory });
  assert.deepEqual(used.out, { wrong: 0 });
  assert.match(used.err, /sgemm called/);
  const builtin = run({ LPQ_BLAS: '', LD_LIBRARY_PATH: directory });
  assert.deepEqual(builtin.out, { wrong: 0 });
  assert.doesNotMatch(builtin.err, /sgemm called/);
});
