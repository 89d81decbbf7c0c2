import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, type DType, fromTyped, type Tensor, typed } from '../../../../native/binding.js';
import { ops } from '../../../../native/ops.js';
import { QUANT_TYPES, type QuantType, typeParams } from '../../../../src/core/quant-type.js';
import { byCodes } from '../../../../src/model/kernels/by-codes.js';
import { type TilusWeight, tilusKernel } from '../../../../src/model/kernels/tilus.js';

const rt = createRuntime(2);
const [M, N, K] = [5, 40, 256];
let state = 5;
const random = (): number => {
  state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
  return state / 2 ** 32;
};
const halves = (dtype: DType, shape: number[], at: (i: number) => number): Tensor => {
  const count = shape.reduce((a, b) => a * b, 1);
  const to = allocate(dtype, shape);
  ops.cast(
    rt,
    fromTyped(
      'f32',
      shape,
      Float32Array.from({ length: count }, (_, i) => at(i)),
    ),
    to,
  );
  return to;
};
const floats = async (tensor: Tensor): Promise<Float32Array> => {
  const to = allocate('f32', tensor.shape);
  ops.cast(rt, tensor, to);
  await rt.sync();
  return typed<Float32Array>(to);
};
/** The number of a code. */
const decoded = (act: 'i8' | 'f8_e4m3', code: number): number => {
  if (act === 'i8') return (code << 24) >> 24;
  const size = code & 0x78 ? 2 ** ((code >> 3) & 15) * (8 + (code & 7)) : 2 * (code & 7);
  return (code & 128 ? -size : size) / 2 ** 10;
};

/** Random codes; scales are powers of two, so that products of an identity are the weights. */
function weightOf(type: QuantType, dtype: DType): TilusWeight {
  const bytes = Uint8Array.from(
    { length: (Math.ceil(N / 32) * (K / 128) * 4096 * type.bits) / 8 },
    () => random() * 256,
  );
  return {
    kernel: tilusKernel,
    shape: [N, K],
    type: typeParams(type),
    groupSize: 64,
    zero: type.kind === 'int' && !type.signed ? 2 ** (type.bits - 1) : 0,
    weights: fromTyped('u8', [Math.ceil(N / 32), K / 128, 512 * type.bits], bytes),
    scales: halves(dtype, [Math.ceil(N / 32), K / 64, 32], () => 2 ** -Math.floor(4 + 3 * random())),
  };
}

test('weights of every type times codes of 8 bits, within two roundings of fp64', async () => {
  for (const dtype of ['f16', 'bf16'] as const)
    for (const act of ['i8', 'f8_e4m3'] as const)
      for (const type of QUANT_TYPES) {
        // Patterns that are no numbers have no place in a product, and f16 does not hold what five bits of exponent reach.
        if (type.kind === 'float' && (type.special !== 'none' || (dtype === 'f16' && type.exponent > 4))) continue;
        const weight = weightOf(type, dtype);
        const dense = allocate(dtype, [K, N]);
        weight.kernel.multiply(
          rt,
          halves(dtype, [K, K], (i) => (i % (K + 1) === 0 ? 1 : 0)),
          weight,
          undefined,
          dense,
        );
        const x = halves(dtype, [M, K], () => (random() - 0.5) * 12);
        const bias = halves(dtype, [N], () => random() - 0.5);
        const y = allocate(dtype, [M, N]);
        const coded = byCodes(weight, act);
        coded.kernel.multiply(rt, x, coded, bias, y);
        const codes = { codes: allocate(act, [M, K]), scales: allocate('f32', [M]) };
        ops.quantizeTokens(rt, x, codes);
        const [w, got, b] = [await floats(dense), await floats(y), await floats(bias)];
        const scales = typed<Float32Array>(codes.scales);
        const numbers = Float64Array.from(typed<Uint8Array>(codes.codes), (code) => decoded(act, code));
        for (let t = 0; t < M; t++)
          for (let n = 0; n < N; n++) {
            let [sum, size] = [0, 0];
            for (let k = 0; k < K; k++) {
              const product = numbers[t * K + k]! * scales[t]! * w[k * N + n]!;
              sum += product;
              size += Math.abs(product);
            }
            // Sums are fp32 (K additions), rounded to 16 bits, multiplied, added to and rounded again.
            const half = dtype === 'f16' ? 2 ** -11 : 2 ** -8;
            const bound = (K + 4) * 2 ** -24 * size + half * (2 * Math.abs(sum) + Math.abs(b[n]!)) * 1.01 + 2 ** -24;
            const off = Math.abs(got[t * N + n]! - (sum + b[n]!));
            assert.ok(off <= bound, `${type.name} ${act} ${dtype} y[${t}][${n}] is off by ${off}, bound ${bound}`);
          }
      }
});

test('widenTokens: numbers are exact, and a factor of 1 to 2 is left', async () => {
  for (const dtype of ['f16', 'bf16', 'f32'] as const)
    for (const act of ['i8', 'f8_e4m3'] as const) {
      const scales = Float32Array.of(0, 2 ** -13, 1.5 * 2 ** -9, 0.37, 1.99, 100);
      const codes = Uint8Array.from({ length: 6 * 256 }, (_, i) => (act !== 'i8' && (i & 127) === 127 ? 0 : i & 255));
      const x = allocate(dtype, [6, 256]);
      const rest = allocate('f32', [6]);
      ops.widenTokens(rt, { codes: fromTyped(act, [6, 256], codes), scales: fromTyped('f32', [6], scales) }, x, rest);
      const values = await floats(x);
      for (const [t, scale] of scales.entries()) {
        const left = typed<Float32Array>(rest)[t]!;
        assert.ok(scale === 0 ? left === 0 : left >= 1 && left < 2, `${scale} leaves ${left}`);
        for (let i = 0; i < 256; i++) {
          const code = codes[t * 256 + i]!;
          const number = decoded(act, code);
          assert.equal(values[t * 256 + i]! * left + 0, number * scale + 0);
        }
      }
    }
});

test('widenTokens and scaleTokens refuse dtypes and shapes that do not match', async () => {
  const from = { codes: allocate('i8', [2, 4]), scales: allocate('f32', [2]) };
  const refused = async (): Promise<void> => {
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT' });
  };
  ops.widenTokens(rt, { ...from, codes: allocate('u8', [2, 4]) }, allocate('f16', [2, 4]), allocate('f32', [2]));
  await refused();
  ops.widenTokens(rt, from, allocate('f16', [2, 5]), allocate('f32', [2]));
  await refused();
  ops.scaleTokens(rt, allocate('f32', [3]), undefined, allocate('f16', [2, 4]));
  await refused();
});
