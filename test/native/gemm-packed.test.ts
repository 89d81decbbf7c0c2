import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, fromTyped, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { QUANT_TYPES, typeParams } from '../../src/core/quant-type.js';
import { fromHalf, half, nearProduct, packedCase, sixtyFourths } from './packed-case.js';
import { Random } from './support.js';

const rt = createRuntime(2);

/** Codes as the layout engine packs them, and the product of the same numbers in f64. */
async function check(
  type: (typeof QUANT_TYPES)[number],
  shape: [number, number, number],
  group: number,
  withZeros: boolean,
) {
  const [m, n, k] = shape;
  const random = new Random(type.bits * 1000 + n + k + group);
  const { weights, scales, zeros, zero, value } = packedCase(rt, random, type, [n, k], group, withZeros);
  const x = sixtyFourths(random, m * k);
  const bias = sixtyFourths(random, n);
  const y = fromTyped('f16', [m, n], new Uint16Array(m * n).fill(0x7e00));
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
      const bits = got[i * n + j]!;
      const { near, want } = nearProduct(bits, k, bias[j]!, (c) => x[i * k + c]! * value(j, c));
      assert.ok(near, `${type.name} ${i} ${j}: ${fromHalf(bits)} and ${want}`);
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
