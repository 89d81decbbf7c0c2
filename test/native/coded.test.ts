import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped, readTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { quantType, typeParams } from '../../src/core/quant-type.js';
import { values as valuesOf } from '../src/quantize/reference.js';
import { expectClose, f32, poisoned, Random, U32 } from './support.js';

const rt = createRuntime(2);

/** Codes with their scales, zero points and order, and the weights that they stand for, from docs/internals/numerics.md. */
function weight(random: Random, name: string, n: number, k: number, group: number, { zeros = false, ordered = false }) {
  const type = quantType(name);
  const table = valuesOf(name);
  const groups = group ? Math.ceil(k / group) : 1;
  const codes = Uint8Array.from({ length: n * k }, () => {
    for (;;) {
      const code = random.integer(0, 2 ** type.bits - 1);
      if (Number.isFinite(table[code]!)) return code;
    }
  });
  const scales = random.normals(n * groups, 0.05);
  const points = Uint8Array.from({ length: n * groups }, () => random.integer(0, 2 ** type.bits - 1));
  const swap = (j: number) => (j * 7 + 3) % k;
  const [columns, inputs] = [
    Array.from({ length: k }, (_, j) => swap(j)),
    Array.from({ length: k }, (_, j) => k - 1 - j),
  ];
  const global = 0.5;
  const values = new Float64Array(n * k);
  for (let row = 0; row < n; row++)
    for (let at = 0; at < k; at++) {
      const g = row * groups + (group ? Math.floor(at / group) : 0);
      const value = table[codes[row * k + (ordered ? columns[at]! : at)]!]!;
      values[row * k + (ordered ? inputs[at]! : at)] = (value - (zeros ? points[g]! : 0)) * scales[g]! * global;
    }
  const tensors = {
    codes: fromTyped('u8', [n, k], codes),
    scales: f32([n, groups], scales),
    ...(zeros && { zeros: fromTyped('u8', [n, groups], points) }),
    ...(ordered && { order: fromTyped('i32', [2, k], Int32Array.from([...columns, ...inputs])) }),
  };
  return { tensors, values, params: typeParams(type), shape: { n, k, group, zero: 0, global }, groups };
}

const TYPES = [
  'u1',
  'i2',
  'u3',
  'i4',
  'u4',
  'f4e2m1',
  'i5',
  'f6e2m3',
  'f6e3m2',
  'u6',
  'i7',
  'i8',
  'u8',
  'f8e4m3',
  'f8e5m2',
];

test('products over codes equal the f64 product within the bound of their order, for every width of code', async () => {
  const random = new Random(11);
  for (const name of TYPES)
    for (const [n, k, group] of [
      [33, 70, 32],
      [130, 130, 64],
      [5, 65, 0],
    ] as const)
      for (const how of [{}, ...(name.startsWith('u') ? [{ zeros: true }] : []), { ordered: k % 7 !== 0 }]) {
        const { tensors, values, params, shape, groups } = weight(random, name, n, k, group, how);
        const block = await ops.layCodes(rt, tensors, params, shape);
        for (const m of n > 100 ? [1, 5] : [1, 2, 3, 4, 5]) {
          const x = random.normals(m * k);
          const bias = random.normals(n);
          const y = poisoned('f32', [m, n]);
          ops.linearCodes(rt, f32([m, k], x), block, f32([n], bias), y);
          const got = await readTyped<Float32Array>(rt, y);
          const [want, size] = [new Float64Array(m * n), new Float64Array(m * n)];
          for (let at = 0; at < m * n; at++) {
            [want[at], size[at]] = [bias[at % n]!, Math.abs(bias[at % n]!)];
            for (let p = 0; p < k; p++) {
              const product = x[Math.floor(at / n) * k + p]! * values[(at % n) * k + p]!;
              want[at]! += product;
              size[at]! += Math.abs(product);
            }
          }
          // A term passes a chain over its group, two fma a group and the bias; scale times global, and the shift, are rounded once more.
          // Codes and zero points are multiplied apart: together at most 2^bits steps of the scale each.
          const wide = 'zeros' in how ? 2 ** (params.bits as number) * shape.global : 0;
          const apart = (at: number) => {
            let sum = 0;
            for (let p = 0; p < k; p++) {
              const g = (at % n) * groups + (group ? Math.floor(p / group) : 0);
              const scales = tensors.scales.bytes();
              const scale = new Float32Array(scales.buffer, scales.byteOffset, n * groups)[g]!;
              sum += Math.abs(x[Math.floor(at / n) * k + p]! * scale) * wide;
            }
            return 2 * sum;
          };
          const roundings = Math.min(k, group || k) + 2 * groups + 4;
          expectClose(
            `${name} ${m} x ${n} x ${k}`,
            got,
            want,
            (i) => 1.01 * roundings * U32 * (size[i]! + (wide ? apart(i) : 0)),
          );
        }
      }
});

test('what codes cannot be is refused', async () => {
  const random = new Random(12);
  const { tensors, params, shape } = weight(random, 'u4', 33, 64, 32, {});
  const lay = (t: Partial<typeof tensors>, s: Partial<typeof shape> = {}) =>
    ops.layCodes(rt, { ...tensors, ...t }, params, { ...shape, ...s });
  await assert.rejects(
    lay({ codes: fromTyped('u8', [33, 64], new Uint8Array(33 * 64).fill(16)) }),
    /code 16 of output \d+ is beyond 4 bits/,
  );
  await assert.rejects(lay({}, { group: 48 }), /the group size is 48/);
  await assert.rejects(
    lay({ order: fromTyped('i32', [2, 64], new Int32Array(128).fill(64)) } as never),
    /names a column that is not there/,
  );
  const block = await lay({});
  ops.linearCodes(rt, poisoned('f32', [1, 32]), block, undefined, poisoned('f32', [1, 33]));
  await assert.rejects(rt.sync(), /x has the shape \[1,32\], not \[-1,64\]/);
  ops.linearCodes(rt, poisoned('f32', [1, 64]), poisoned('u8', [9000]), undefined, poisoned('f32', [1, 33]));
  await assert.rejects(rt.sync(), /holds no packed weight/);
});
