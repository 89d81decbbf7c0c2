import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, fromTyped, type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { QUANT_TYPES, quantType, typeParams } from '../../src/core/quant-type.js';
import { fromHalf, half, nearProduct, type PackedCase, packedCase, sixtyFourths } from './packed-case.js';
import { i32, Random } from './support.js';

const rt = createRuntime(2);
const POISON = 0x7e01;

/** Tensors of one form, one after the other. */
function stacked(parts: readonly Tensor[]): Tensor {
  const [first] = parts as [Tensor];
  const whole = allocate(first.dtype, [parts.length, ...first.shape]);
  for (const [e, part] of parts.entries()) whole.bytes().set(part.bytes(), e * part.byteLength);
  return whole;
}

function offsetsOf(counts: readonly number[], before: number): number[] {
  const offsets = [before];
  for (const count of counts) offsets.push(offsets.at(-1)! + count);
  return offsets;
}

/** Experts with so many rows, in front of and behind rows that none has, against f64. */
async function check(
  type: (typeof QUANT_TYPES)[number],
  counts: readonly number[],
  [n, k]: readonly [number, number],
  group: number,
  withZeros: boolean,
) {
  const random = new Random(type.bits * 1000 + n + k + group);
  const [before, behind] = [2, 1];
  const offsets = offsetsOf(counts, before);
  const m = offsets.at(-1)! + behind;
  const cases = counts.map((): PackedCase => packedCase(rt, random, type, [n, k], group, withZeros));
  const x = sixtyFourths(random, m * k);
  const bias = sixtyFourths(random, counts.length * n);
  const y = fromTyped('f16', [m, n], new Uint16Array(m * n).fill(POISON));
  await rt.sync();
  const given = {
    weights: stacked(cases.map(({ weights }) => weights)),
    scales: stacked(cases.map(({ scales }) => scales)),
    ...(withZeros && { zeros: stacked(cases.map(({ zeros }) => zeros)) }),
  };
  const biases = fromTyped('f16', [counts.length, n], Uint16Array.from(bias, half));
  const rows = fromTyped('f16', [m, k], Uint16Array.from(x, half));
  ops.gemmExperts(rt, rows, i32(offsets), given, biases, y, typeParams(type), {
    groupSize: group,
    zero: cases[0]!.zero,
  });
  await rt.sync();
  const got = typed<Uint16Array>(y);
  for (let i = 0; i < m; i++)
    for (let j = 0; j < n; j++) {
      const e = offsets.findLastIndex((first) => first <= i);
      const bits = got[i * n + j]!;
      if (e < 0 || e === counts.length) {
        assert.equal(bits, POISON, `row ${i} is of no expert`);
        continue;
      }
      const { near, want } = nearProduct(bits, k, bias[e * n + j]!, (c) => x[i * k + c]! * cases[e]!.value(j, c));
      assert.ok(near, `${type.name} expert ${e} ${i} ${j}: ${fromHalf(bits)} and ${want}`);
    }
}

test('every type: rows of every expert times its weight, with tails', async () => {
  for (const type of QUANT_TYPES) await check(type, [1, 0, 3], [37, 200], 64, false);
});

test('groups of 32 and 128 and whole rows, with zero points; experts without rows at either end', async () => {
  for (const type of QUANT_TYPES.filter(({ kind, bits }) => kind === 'int' && bits % 3 === 1))
    for (const group of [0, 32, 128]) await check(type, [0, 2, 0, 17, 0], [33, 130], group, true);
});

const u4 = typeParams(quantType('u4'));
const w = { weights: allocate('u8', [2, 1, 1, 2048]), scales: allocate('f16', [2, 1, 1, 32]) };
const x = allocate('f16', [4, 128]);

test('offsets that do not ascend, or lead out of x, are refused', async () => {
  for (const [offsets, said] of [
    [[0, 3, 2], /offsets\[2\] is 2: they are to ascend from 0 or more to at most 4/],
    [[-1, 0, 4], /offsets\[0\] is -1/],
    [[0, 2, 5], /offsets\[2\] is 5/],
  ] as const) {
    ops.gemmExperts(rt, x, i32(offsets), w, undefined, allocate('f16', [4, 32]), u4, { groupSize: 128 });
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', message: said });
  }
});

test('shapes that disagree and settings that no kernel has are refused', async () => {
  const y = allocate('f16', [4, 32]);
  const offsets = i32([0, 1, 4]);
  for (const [given, more, said] of [
    [{ ...w, weights: allocate('u8', [3, 1, 1, 2048]) }, {}, /weights has the shape/],
    [{ ...w, weights: allocate('u8', [2, 1, 2048]) }, {}, /weights has the shape/],
    [{ ...w, scales: allocate('f16', [2, 1, 2, 32]) }, {}, /scales has the shape/],
    [{ ...w, zeros: allocate('u8', [1, 1, 1, 32]) }, {}, /zeros has the shape/],
    [w, { groupSize: 48 }, /groupSize is 48/],
    [w, { kernel: 'stream' as 'hopper' }, /kernel is 'stream', not scaled, wide, hopper or portable/],
  ] as const) {
    ops.gemmExperts(rt, x, offsets, given, undefined, y, u4, { groupSize: 128, ...more });
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', message: said });
  }
  ops.gemmExperts(rt, x, i32([0]), w, undefined, y, u4, { groupSize: 128 });
  await assert.rejects(rt.sync(), {
    code: 'LPQ_NATIVE_ARGUMENT',
    message: /there are 0 experts, not 1 to 4096/,
  });
  ops.gemmExperts(rt, x, offsets, w, fromTyped('f16', [32], new Uint16Array(32)), y, u4, { groupSize: 128 });
  await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', message: /bias has the shape/ });
});
