import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, fromTyped, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { decodeCode, QUANT_TYPES, typeParams } from '../../src/core/quant-type.js';
import { pack } from '../../src/layout/engine.js';
import { tilusScales, tilusWeight } from '../../src/pack/layouts/tilus.js';
import { Random } from './support.js';

const rt = createRuntime(2);

/** A multiple of 1/64 below 2 in f16: 0 or 2^-6 .. 2, where steps of 1/1024 are exact. */
function half(value: number): number {
  if (value === 0) return 0;
  const exponent = Math.floor(Math.log2(Math.abs(value)));
  const mantissa = Math.round((Math.abs(value) / 2 ** exponent - 1) * 1024);
  return (value < 0 ? 0x8000 : 0) | ((exponent + 15) << 10) | mantissa;
}

function fromHalf(bits: number): number {
  const exponent = (bits >> 10) & 31;
  const mantissa = bits & 1023;
  const size = exponent === 0 ? mantissa * 2 ** -24 : (1024 + mantissa) * 2 ** (exponent - 25);
  return bits & 0x8000 ? -size : size;
}

const up = (value: number, unit: number) => Math.ceil(value / unit) * unit;

/** Codes as the layout engine packs them, and the product of the same numbers in f64. */
async function check(
  type: (typeof QUANT_TYPES)[number],
  shape: [number, number, number],
  group: number,
  withZeros: boolean,
) {
  const [m, n, k] = shape;
  const random = new Random(type.bits * 1000 + n + k + group);
  const [np, kp] = [up(n, 32), up(k, 128)];
  const groups = group === 0 ? 1 : Math.ceil(k / group);
  const numbers = Array.from({ length: 2 ** type.bits }, (_, code) => decodeCode(type, code));
  const finite = numbers.flatMap((value, code) => (Number.isFinite(value) ? [code] : []));
  const codes = new Uint8Array(np * kp);
  for (let i = 0; i < n; i++)
    for (let j = 0; j < k; j++) codes[i * kp + j] = finite[random.integer(0, finite.length - 1)]!;
  const scaleBits = new Uint16Array(np * groups);
  const zeroBytes = new Uint8Array(np * groups);
  for (let i = 0; i < n * groups; i++) {
    scaleBits[i] = half((random.integer(0, 1) ? 1 : -1) * (random.integer(8, 120) / 64));
    zeroBytes[i] = random.integer(0, 2 ** type.bits - 1);
  }
  const x = Float64Array.from({ length: m * k }, () => random.integer(-64, 64) / 64);
  const weights = allocate('u8', [np / 32, kp / 128, 512 * type.bits]);
  const scales = allocate('f16', [np / 32, groups, 32]);
  const zeros = allocate('u8', [np / 32, groups, 32]);
  pack(rt, tilusWeight(np, kp, type.bits), fromTyped('u8', [np, kp], codes), weights);
  pack(rt, tilusScales(np, groups, 16), fromTyped('f16', [np, groups], scaleBits), scales);
  pack(rt, tilusScales(np, groups, 8), fromTyped('u8', [np, groups], zeroBytes), zeros);
  const bias = Float64Array.from({ length: n }, () => random.integer(-64, 64) / 64);
  const y = fromTyped('f16', [m, n], new Uint16Array(m * n).fill(0x7e00));
  const zero = withZeros || type.kind === 'float' ? 0 : type.signed ? 0 : 2 ** (type.bits - 1);
  ops.gemmPacked(
    rt,
    fromTyped('f16', [m, k], Uint16Array.from(x, half)),
    { weights, scales, ...(withZeros && { zeros }) },
    fromTyped('f16', [n], Uint16Array.from(bias, half)),
    y,
    typeParams(type),
    { groupSize: group, zero },
  );
  await rt.sync();
  const got = typed<Uint16Array>(y);
  for (let i = 0; i < m; i++)
    for (let j = 0; j < n; j++) {
      let want = bias[j]!;
      let size = Math.abs(want);
      for (let c = 0; c < k; c++) {
        const at = j * groups + (group === 0 ? 0 : Math.floor(c / group));
        const offset = withZeros ? zeroBytes[at]! : zero;
        const product = x[i * k + c]! * (numbers[codes[j * kp + c]!]! - offset) * fromHalf(scaleBits[at]!);
        want += product;
        size += Math.abs(product);
      }
      // Weights are rounded to f32 once, sums of k + 1 terms in f32, the result to f16; beyond 65504 it is infinite.
      const bound = size * (k + 3) * 2 ** -24 + Math.abs(want) * 2 ** -11 + 2 ** -25;
      const bits = got[i * n + j]!;
      if ((bits & 0x7fff) === 0x7c00) assert.ok(Math.abs(want) + bound >= 65520, `${type.name} ${i} ${j}`);
      else assert.ok(Math.abs(fromHalf(bits) - want) <= bound, `${type.name} ${i} ${j}: ${fromHalf(bits)} and ${want}`);
    }
}

test('every type: the product of what the layout engine packed, with tails', async () => {
  for (const type of QUANT_TYPES) await check(type, [3, 37, 200], 64, false);
});

test('groups of 32, 64, 128 and whole rows, with zero points', async () => {
  for (const type of QUANT_TYPES.filter(({ kind }) => kind === 'int'))
    for (const group of [0, 32, 128]) await check(type, [2, 33, 130], group, true);
});

test('shapes that disagree are refused', async () => {
  const type = QUANT_TYPES.find(({ name }) => name === 'u4')!;
  const x = allocate('f16', [1, 128]);
  const w = { weights: allocate('u8', [1, 1, 2048]), scales: allocate('f16', [1, 1, 32]) };
  for (const [wrong, weights] of [
    [{ groupSize: 48 }, w],
    [{ groupSize: 64 }, w],
    [{ groupSize: 128 }, { ...w, weights: allocate('u8', [1, 1, 2047]) }],
  ] as const) {
    ops.gemmPacked(rt, x, weights, undefined, allocate('f16', [1, 32]), typeParams(type), wrong);
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT' });
  }
});

test('what no parameter is called, and what a setting cannot be, is refused before anything runs', async () => {
  const type = typeParams(QUANT_TYPES.find(({ name }) => name === 'u4')!);
  const inputs = [allocate('f16', [1, 128]), allocate('u8', [1, 1, 2048]), allocate('f16', [1, 1, 32])];
  for (const [wrong, code, detail] of [
    [{ stripes: 0 }, 'LPQ_NATIVE_PARAM', "no parameter of gemm_packed is called 'stripes'"],
    [
      { kernel: 'fast' },
      'LPQ_NATIVE_ARGUMENT',
      "kernel is 'fast', not stream, wide, scaled, hopper, large or portable",
    ],
    [{ reduce: 'warp' }, 'LPQ_NATIVE_ARGUMENT', "reduce is 'warp', not global or cluster"],
    [{ stages: -1 }, 'LPQ_NATIVE_ARGUMENT', 'stages is -1, below 0'],
    [{ blocks: 1.5 }, 'LPQ_NATIVE_PARAM', "'blocks' is 1.500000, not a whole number"],
  ] as const) {
    rt.enqueue('gemm_packed', inputs, [allocate('f16', [1, 32])], { ...type, groupSize: 128, ...wrong });
    await assert.rejects(rt.sync(), (error: { code?: string; message: string }) => {
      assert.deepEqual([error.code, error.message.includes(detail)], [code, true], error.message);
      return true;
    });
  }
  rt.enqueue('gemm_packed', [...inputs, allocate('f16', [32])], [allocate('f16', [1, 32])], {
    ...type,
    groupSize: 128,
  });
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT' });
});
