import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, type DType, fromTyped, readTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { decodeBf16, decodeF16, expectClose, f32, poisoned, Random, U32 } from './support.js';

const runtimes = (['f32', 'bf16'] as const).map((products) => createRuntime({ threads: 2, products }));

/** Weights of ordinary size as 16-bit patterns, and their values. */
function weights(random: Random, dtype: 'f16' | 'bf16', n: number, k: number) {
  const bits = Uint16Array.from({ length: n * k }, () => {
    const sign = random.integer(0, 1) << 15;
    return dtype === 'f16'
      ? sign | (random.integer(9, 15) << 10) | random.integer(0, 1023)
      : sign | (random.integer(120, 127) << 7) | random.integer(0, 127);
  });
  return {
    plain: fromTyped(dtype, [n, k], bits),
    values: Float64Array.from(bits, dtype === 'f16' ? decodeF16 : decodeBf16),
  };
}

function banded(plain: Tensor): Tensor {
  const [n, k] = plain.shape as [number, number];
  const words = poisoned(plain.dtype, [Math.ceil(n / 32), Math.ceil(k / 2), 64]);
  ops.bandWeight(runtimes[0]!, plain, words);
  return words;
}

// Part of a panel, of a band and of a pair; one block of 512 k and more; few rows, and so many that panels are made.
const SHAPES = [
  [1, 1],
  [31, 7],
  [130, 513],
  [290, 1026],
] as const;
const ROWS = [1, 2, 3, 4, 5, 8, 9, 70];

test('a banded weight gives the bytes that the weight gives, for any number of rows', async () => {
  const random = new Random(3);
  for (const [n, k] of SHAPES)
    for (const dtype of ['f16', 'bf16'] as const) {
      const { plain } = weights(random, dtype, n, k);
      const words = banded(plain);
      await runtimes[0]!.sync();
      for (const rt of runtimes)
        for (const m of ROWS) {
          const x = f32([m, k], random.normals(m * k));
          const bias = f32([n], random.normals(n));
          for (const accumulate of [false, true]) {
            const start = random.normals(m * n);
            const [want, got] = [f32([m, n], start), f32([m, n], start)];
            ops.linear(rt, x, plain, accumulate ? undefined : bias, want, { accumulate });
            ops.linear(rt, x, words, accumulate ? undefined : bias, got, { accumulate });
            const bytes = (await readTyped<Float32Array>(rt, got)) && Buffer.from(got.bytes());
            assert.ok(bytes.equals(want.bytes()), `${m} x ${n} x ${k} of ${dtype} in ${rt.products}`);
          }
        }
    }
});

test('products of one to five rows equal the f64 product within the bound of their order', async () => {
  const [rt] = runtimes as [ReturnType<typeof createRuntime>];
  const random = new Random(4);
  for (const [n, k] of SHAPES)
    for (const dtype of ['f16', 'bf16'] as const) {
      const { plain, values } = weights(random, dtype, n, k);
      const words = banded(plain);
      for (let m = 1; m <= 5; m++) {
        const x = random.normals(m * k);
        const y = poisoned('f32', [m, n]);
        ops.linear(rt, f32([m, k], x), words, undefined, y);
        const got = await readTyped<Float32Array>(rt, y);
        const [want, size] = [new Float64Array(m * n), new Float64Array(m * n)];
        for (let at = 0; at < m * n; at++)
          for (let p = 0; p < k; p++) {
            const product = x[Math.floor(at / n) * k + p]! * values[(at % n) * k + p]!;
            want[at]! += product;
            size[at]! += Math.abs(product);
          }
        // One rounding an fma of a chain of at most 512, and one a block (test/native/linalg.test.ts).
        const roundings = Math.min(k, 512) + Math.ceil(k / 512);
        expectClose(`${m} x ${n} x ${k} ${dtype}`, got, want, (i) => 1.01 * roundings * U32 * size[i]!);
      }
    }
});

test('what is no banded weight of the product is refused', async () => {
  const [rt] = runtimes as [ReturnType<typeof createRuntime>];
  const refused = async (dtype: DType, shape: readonly number[], what: RegExp) => {
    ops.linear(rt, f32([2, 6], new Float32Array(12)), poisoned(dtype, shape), undefined, poisoned('f32', [2, 40]));
    await assert.rejects(rt.sync(), what);
  };
  await refused('bf16', [1, 3, 64], /weight has the shape \[1,3,64\], not \[2,3,64\]/);
  await refused('bf16', [2, 4, 64], /weight has the shape \[2,4,64\], not \[2,3,64\]/);
  await refused('f32', [2, 3, 64], /weight is f32, not f16 or bf16/);
  await refused('bf16', [2, 3, 64, 1], /weight has the shape \[2,3,64,1\], not \[-1,6\]/);
});
