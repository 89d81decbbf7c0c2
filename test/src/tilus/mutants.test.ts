import assert from 'node:assert/strict';
import { test } from 'node:test';
import { LpqError } from '../../../src/core/error.js';
import { check } from '../../../src/tilus/check/check.js';
import { run } from '../../../src/tilus/interpret/run.js';
import { parse } from '../../../src/tilus/language/parse.js';
import { programText } from '../../../src/tilus/programs.js';
import { elements, noise, numberOf, packed, valuesOf } from './direct.js';

const [m, N, K, GROUPS] = [41, 64, 256, 2];
const TILE = { T: 'i5', N, K, WN: 2, RN: 2, RK: 2 };

type Texts = Readonly<Record<string, string>>;
const TEXTS: Texts = Object.fromEntries(
  ['matmul', 'transform', 'dequantize', 'sum'].map((name) => [name, programText(name)]),
);

const random = noise(41);
const codes = Array.from({ length: K * N }, () => random(32));
const a = Array.from({ length: m * K }, () => random(9) - 4);
const scales = Array.from({ length: GROUPS * N }, () => 1 + random(3));
const zeros = Array.from({ length: GROUPS * N }, () => random(5) - 2);
const bias = Array.from({ length: N }, () => random(7));
const weights = codes.map((code, i) => {
  const at = Math.floor(Math.floor(i / N) / (K / GROUPS)) * N + (i % N);
  return (numberOf('i5', code) - zeros[at]!) * scales[at]!;
});
// Whole numbers: all of it is exact.
const product = Array.from({ length: m * N }, (_, i) => {
  let sum = bias[i % N]!;
  for (let k = 0; k < K; k++) sum += a[Math.floor(i / N) * K + k]! * weights[k * N + (i % N)]!;
  return sum;
});

/** Transforms, dequantizes, multiplies pipelined in two parts of K, adds these up, multiplies in slices of K; whether all is right. */
function right(texts: Texts): boolean {
  const launch = (
    name: string,
    settings: Record<string, number | string>,
    args: Record<string, Uint8Array | number>,
    output: string,
    bytes: number,
  ): Uint8Array => {
    const out = new Uint8Array(bytes);
    const ran = run(check(parse(texts[name]!), { settings }), { ...args, [output]: { output: out } }, 100_000);
    if (ran.unwritten[output]! > 0)
      throw new LpqError('LPQ_TILUS', `${ran.unwritten[output]} bytes of ${output} were not written`);
    return out;
  };
  const tiles = launch('transform', TILE, { w_ptr: packed(5, codes) }, 'transformed_ptr', (K * N * 5) / 8);
  const more = { s_ptr: elements('f16', scales), z_ptr: elements('f16', zeros), bias_ptr: elements('f32', bias), m };
  const settings = { ...TILE, GROUPS, ZEROS: 1 };
  const dequantized = launch(
    'dequantize',
    { ...settings, O: 'f16' },
    { ...more, tiles_ptr: tiles },
    'w_ptr',
    2 * K * N,
  );
  const form = { ...settings, WM: 2, RM: 1, STAGES: 3, SPLIT: 2, O: 'f32' };
  const parts = launch('matmul', form, { ...more, a_ptr: elements('f16', a), w_ptr: tiles }, 'c_ptr', 8 * m * N);
  const c = launch('sum', { N, SPLIT: 2, BIAS: 1, O: 'f32' }, { ...more, parts_ptr: parts }, 'c_ptr', 4 * m * N);
  const slices = { ...settings, WM: 2, WK: 2, STAGES: 2, BIAS: 1, O: 'f32' };
  const whole = launch('matmul', slices, { ...more, a_ptr: elements('f16', a), w_ptr: tiles }, 'c_ptr', 4 * m * N);
  if (String(valuesOf('f32', whole)) !== String(product)) return false;
  return String(valuesOf('f16', dequantized)) === String(weights) && String(valuesOf('f32', c)) === String(product);
}

const MUTANTS: readonly (readonly [program: string, from: string, to: string])[] = [
  ['transform', 'local(RK, RN).mma_b(X)', 'column_local(RK, RN).mma_b(X)'],
  ['transform', 'offset=[bk * BK:, bj * BN:]', 'offset=[bj * BK:, bk * BN:]'],
  ['transform', 'offset=[bk, bj, 0:]', 'offset=[bk, 0, 0:]'],
  ['transform', 'bk, bj = BlockIndices()', 'bj, bk = BlockIndices()'],
  ['transform', 'WN = 1 ', 'WM = 1 '],
  ['dequantize', 'Sub(w, z)', 'Add(w, z)'],
  ['dequantize', 'dtype=T', 'dtype=u5'],
  ['dequantize', 'bk * BK / (K / GROUPS):, bj * BN:])\n        w = Mul', '0:, bj * BN:])\n        w = Mul'],
  ['dequantize', 'collapse(0)', 'collapse(1)'],
  ['dequantize', 'mma_b(X)', 'mma_a(X)'],
  ['matmul', 'w = Sub(w, z)', 'w = Sub(z, w)'],
  ['matmul', 'w = Mul(w, s)', 'w = Mul(w, w)'],
  ['matmul', 'CopyAsyncWaitGroup(STAGES - 2)', 'CopyAsyncWaitGroup(STAGES - 1)'],
  ['matmul', '            Synchronize()\n', ''],
  ['matmul', 'ahead = step + STAGES - 1', 'ahead = step + STAGES'],
  ['matmul', 'at=[ahead % STAGES, 0:, 0:]', 'at=[step % STAGES, 0:, 0:]'],
  ['matmul', '            CopyAsyncCommitGroup()\n            a =', '            a ='],
  ['matmul', 'first = bs * STEPS', 'first = 0'],
  ['matmul', 'offset=[step % STAGES, 0:, 0:]', 'offset=[0, 0:, 0:]'],
  ['matmul', 'offset=[bs, bi * BM:, bj * BN:]', 'offset=[0, bi * BM:, bj * BN:]'],
  ['matmul', 'offset=[bi * BM:, (first + ahead) * BK:]', 'offset=[0:, (first + ahead) * BK:]'],
  ['matmul', '(m + BM - 1) / BM', 'm / BM'],
  ['matmul', 'min(STAGES - 1, STEPS)', '1'],
  ['matmul', 'total = Dot(x, w, total)', 'Dot(x, w, total)'],
  ['matmul', 'LS = spatial(WK * WM, 1).replicate(WN)', 'LS = replicate(WN).spatial(WK * WM, 1)'],
  ['matmul', 'LA = spatial(1, WK).spatial(WM, 1)', 'LA = spatial(WM, 1).spatial(1, WK)'],
  ['matmul', 'StoreShared(total, sc)\n        Synchronize()', 'StoreShared(total, sc)'],
  ['matmul', 'range(1, WK)', 'range(WK)'],
  ['matmul', 'offset=[slice * BM:, 0:]', 'offset=[0:, 0:]'],
  ['matmul', 'K / BK * WK, N / BN', 'K / BK, N / BN'],
  ['matmul', 'SPLIT = 1  ', 'SPLITS = 1'],
  ['matmul', 'init=0.0', 'init=1.0'],
  ['sum', 'range(1, SPLIT)', 'range(SPLIT)'],
  ['sum', 'total = Add(total, v)', 'total = Add(total, total)'],
  ['sum', '(m + 3) / 4', 'm / 4'],
];

test('a program that one word is changed in gives no right result: it is refused, reported, or wrong', () => {
  assert.ok(right(TEXTS));
  const survivors: string[] = [];
  for (const [name, from, to] of MUTANTS) {
    assert.ok(TEXTS[name]!.includes(from), `${name} has no ${from}`);
    try {
      if (right({ ...TEXTS, [name]: TEXTS[name]!.replace(from, to) })) survivors.push(`${name}: ${from} -> ${to}`);
    } catch (error) {
      if (!(error instanceof LpqError && error.code === 'LPQ_TILUS')) throw error;
    }
  }
  assert.deepEqual(survivors, []);
});
