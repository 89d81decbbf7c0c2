import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, type DType, fromTyped, type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { QUANT_TYPES, quantType, typeParams } from '../../src/core/quant-type.js';
import { fromBf16, fromF16, random, stored, toBf16, toF16, values } from '../src/quantize/reference.js';

const rt = createRuntime(2);

test('every code of every type decodes to its number', async () => {
  for (const type of QUANT_TYPES) {
    const expected = values(type.name);
    const codes = fromTyped('u8', [1, expected.length], Uint8Array.from(expected.keys()));
    const scales = fromTyped('f32', [1, 1], Float32Array.of(1));
    const w = allocate('f32', [1, expected.length]);
    ops.dequantize(rt, { codes, scales }, w, typeParams(type), { blockN: 1, blockK: expected.length });
    await rt.sync();
    // -0 - 0 is -0, and a product with 1 keeps it.
    assert.deepEqual(Array.from(typed(w)), expected, type.name);
  }
});

function scaleTensor(dtype: DType, shape: [number, number], next: () => number): Tensor {
  const count = shape[0] * shape[1];
  const draw = (low: number, high: number) =>
    Array.from({ length: count }, () => Math.floor(low + next() * (high - low)));
  if (dtype === 'f32')
    return fromTyped(
      dtype,
      shape,
      Float32Array.from({ length: count }, () => next() * 0.1),
    );
  if (dtype === 'f16') return fromTyped(dtype, shape, Uint16Array.from(draw(0x0001, 0x4c00))); // subnormals too
  if (dtype === 'bf16') return fromTyped(dtype, shape, Uint16Array.from(draw(0x3a00, 0x4200)));
  if (dtype === 'f8_e8m0') return fromTyped(dtype, shape, Uint8Array.from(draw(100, 140)));
  return fromTyped(dtype, shape, Uint8Array.from(draw(1, 0x7f)));
}

test('dequantize is (code - zero) * scale * global, against f64', async () => {
  const next = random(7);
  const [n, k] = [6, 48];
  let checked = 0;
  for (const name of ['u1', 'u4', 'u7', 'i3', 'i8', 'f3e1m1', 'f4e2m1', 'f6e3m2', 'f8e4m3'])
    for (const scaleDtype of ['f16', 'bf16', 'f32', 'f8_e8m0', 'f8_e4m3'] as const)
      for (const zeroDtype of [undefined, 'u8', 'i16', 'f16', 'f32'] as const)
        for (const [blockN, blockK] of [
          [1, 16],
          [1, 48],
          [4, 32],
        ] as const)
          for (const grouped of [false, true]) {
            const table = values(name);
            const usable = [...table.keys()].filter((code) => !Number.isNaN(table[code]!));
            const raw = Uint8Array.from({ length: n * k }, () => usable[Math.floor(next() * usable.length)]!);
            const shape: [number, number] = [Math.ceil(n / blockN), Math.ceil(k / blockK)];
            const scales = scaleTensor(scaleDtype, shape, next);
            const count = shape[0] * shape[1];
            const zeroValues =
              zeroDtype === undefined
                ? undefined
                : zeroDtype === 'u8'
                  ? Uint8Array.from({ length: count }, () => next() * 256)
                  : zeroDtype === 'i16'
                    ? Int16Array.from({ length: count }, () => next() * 512 - 256)
                    : zeroDtype === 'f16'
                      ? Uint16Array.from({ length: count }, () => 0x3000 + next() * 0x1000)
                      : Float32Array.from({ length: count }, () => next() * 16);
            const zeros = zeroValues && fromTyped(zeroDtype!, shape, zeroValues);
            const index = Int32Array.from({ length: k }, () => Math.floor(next() * shape[1]));
            const group = grouped ? fromTyped('i32', [k], index) : undefined;
            const global = Math.fround(0.25 + next());
            const constant = zeroDtype === undefined ? 7.5 : 0;
            const codes = fromTyped('u8', [n, k], raw);
            const w = allocate('f32', [n, k]);
            ops.dequantize(
              rt,
              { codes, scales, ...(zeros ? { zeros } : {}), ...(group ? { group } : {}) },
              w,
              typeParams(quantType(name)),
              { blockN, blockK, zero: constant, global },
            );
            await rt.sync();
            const got = typed(w);
            const scaleRaw = typed<Float32Array>(scales);
            for (let row = 0; row < n; row++)
              for (let i = 0; i < k; i++) {
                const at = Math.floor(row / blockN) * shape[1] + (grouped ? index[i]! : Math.floor(i / blockK));
                const zero = zeroValues ? stored(zeroDtype!, zeroValues, at) : constant;
                const exact = (table[raw[row * k + i]!]! - zero) * stored(scaleDtype, scaleRaw, at) * global;
                // Three f32 operations, each off by at most 2^-24 of its result.
                const bound = Math.abs(exact) * 3.01 * 2 ** -24;
                const error = Math.abs(got[row * k + i]! - exact);
                assert.ok(
                  error <= bound,
                  `${name} ${scaleDtype} ${zeroDtype} row ${row} column ${i}: ${error} > ${bound}`,
                );
                checked++;
              }
          }
  assert.ok(checked > 100_000);
});

test('f16 and bf16 weights are the f32 ones rounded', async () => {
  const next = random(3);
  const [n, k] = [8, 64];
  const codes = fromTyped(
    'u8',
    [n, k],
    Uint8Array.from({ length: n * k }, () => next() * 256),
  );
  const scales = scaleTensor('f32', [n, 4], next);
  const results: number[][] = [];
  for (const dtype of ['f32', 'f16', 'bf16'] as const) {
    const w = allocate(dtype, [n, k]);
    ops.dequantize(rt, { codes, scales }, w, typeParams(quantType('f8e3m4')), { blockN: 1, blockK: 16 });
    await rt.sync();
    const raw = Array.from(typed(w));
    results.push(dtype === 'f32' ? raw : raw.map(dtype === 'f16' ? fromF16 : fromBf16));
  }
  for (let i = 0; i < n * k; i++) {
    assert.equal(results[1]![i], toF16(results[0]![i]!));
    assert.equal(results[2]![i], toBf16(results[0]![i]!));
  }
});

test('an e8m0 scale of 255 is NaN', async () => {
  const w = allocate('f32', [1, 2]);
  const codes = fromTyped('u8', [1, 2], Uint8Array.of(1, 2));
  ops.dequantize(
    rt,
    { codes, scales: fromTyped('f8_e8m0', [1, 2], Uint8Array.of(255, 0)) },
    w,
    typeParams(quantType('u4')),
    {
      blockN: 1,
      blockK: 1,
    },
  );
  await rt.sync();
  assert.deepEqual(Array.from(typed(w)), [Number.NaN, 2 ** -126]);
});

test('shapes, dtypes and a group index out of range are refused', async () => {
  const codes = allocate('u8', [4, 32]);
  const w = allocate('f32', [4, 32]);
  const scales = allocate('f16', [4, 2]);
  const index = Int32Array.from({ length: 32 }, (_, i) => (i === 17 ? 2 : 0));
  const p = { blockN: 1, blockK: 16 };
  const cases: [Parameters<typeof ops.dequantize>[1], Tensor, typeof p][] = [
    [{ codes, scales: allocate('f16', [4, 3]) }, w, p],
    [{ codes, scales: allocate('i8', [4, 2]) }, w, p],
    [{ codes, scales, zeros: allocate('u8', [4, 1]) }, w, p],
    [{ codes, scales, zeros: allocate('bf16', [4, 2]) }, w, p],
    [{ codes, scales, group: fromTyped('i32', [32], index) }, w, p],
    [{ codes, scales }, allocate('f32', [4, 31]), p],
    [{ codes, scales }, w, { blockN: 1, blockK: 0 }],
  ];
  for (const [tensors, out, params] of cases) {
    ops.dequantize(rt, tensors, out, typeParams(quantType('u4')), params);
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT' });
  }
});
