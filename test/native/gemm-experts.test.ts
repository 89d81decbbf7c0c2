import assert from 'node:assert/strict';
import { test } from 'node:test';
import { allocate, createRuntime, type DType, fromTyped, type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { ExpertGating } from '../../native/packed-ops.js';
import { QUANT_TYPES, quantType, typeParams } from '../../src/core/quant-type.js';
import { fromHalf, half, nearProduct, type PackedCase, packedCase, sixtyFourths } from './packed-case.js';
import { i32, Random } from './support.js';

const rt = createRuntime(2);
const POISON = 0x7e01;
type Interleaving = Parameters<typeof ops.interleaveGates>[3];

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

const GATINGS = {
  silu: [{ gate: 'silu' }, (g, u) => (g / (1 + Math.exp(-g))) * u],
  limited: [{ gate: 'silu', limit: 2 }, (g, u) => silu(Math.min(g, 2)) * Math.max(-2, Math.min(2, u))],
  clamped: [
    { gate: 'clamped', alpha: 1.75, limit: 2 },
    (g, u) => (silu(1.75 * Math.min(g, 2)) / 1.75) * (Math.max(-2, Math.min(2, u)) + 1),
  ],
  gelu_tanh: [
    { gate: 'gelu_tanh' },
    (g, u) => (g / 2) * (1 + Math.tanh(Math.sqrt(2 / Math.PI) * (g + 0.044715 * g ** 3))) * u,
  ],
  relu: [{ gate: 'relu' }, (g, u) => Math.max(g, 0) * u],
  relu2: [{ gate: 'relu2' }, (g, u) => Math.max(g, 0) ** 2 * u],
  quick_gelu: [{ gate: 'quick_gelu' }, (g, u) => (g / (1 + Math.exp(-1.702 * g))) * u],
  sigmoid: [{ gate: 'sigmoid' }, (g, u) => u / (1 + Math.exp(-g))],
} as const satisfies Record<string, readonly [ExpertGating, (gate: number, up: number) => number]>;
const silu = (x: number) => x / (1 + Math.exp(-x));

/** Gate and up of every expert, packed apart, their blocks interleaved. */
async function checkGated(
  type: (typeof QUANT_TYPES)[number],
  name: keyof typeof GATINGS,
  group: number,
  withZeros: boolean,
) {
  const random = new Random(type.bits * 100 + name.length);
  const [n, k, counts] = [41, 200, [2, 0, 3]] as const;
  const [rows, m, offsets] = [Math.ceil(n / 32) * 32, 5, offsetsOf(counts, 0)];
  const cases = counts.flatMap(() => [0, 1].map(() => packedCase(rt, random, type, [n, k], group, withZeros)));
  const x = sixtyFourths(random, m * k);
  const bias = sixtyFourths(random, cases.length * rows);
  const y = fromTyped('f16', [m, n], new Uint16Array(m * n).fill(POISON));
  await rt.sync();
  const interleaved = (parts: readonly Tensor[], of: 'words' | 'sides') => {
    const [down, ...rest] = parts[0]!.shape as [number, ...number[]];
    const apart = stacked(parts).view([counts.length, 2 * down, ...rest]);
    const made = allocate(apart.dtype, apart.shape);
    ops.interleaveGates(rt, apart, made, of === 'words' ? { of, bits: type.bits } : { of });
    return made;
  };
  const given = {
    weights: interleaved(
      cases.map(({ weights }) => weights),
      'words',
    ),
    scales: interleaved(
      cases.map(({ scales }) => scales),
      'sides',
    ),
    ...(withZeros && {
      zeros: interleaved(
        cases.map(({ zeros }) => zeros!),
        'sides',
      ),
    }),
  };
  const biases = allocate('f16', [counts.length, 2 * rows]);
  ops.interleaveGates(rt, fromTyped('f16', biases.shape, Uint16Array.from(bias, half)), biases, { of: 'rows' });
  const [gating, made] = GATINGS[name];
  ops.gemmExperts(
    rt,
    fromTyped('f16', [m, k], Uint16Array.from(x, half)),
    i32(offsets),
    given,
    biases,
    y,
    typeParams(type),
    {
      groupSize: group,
      zero: cases[0]!.zero,
      ...gating,
    },
  );
  await rt.sync();
  for (const [at, bits] of typed<Uint16Array>(y).entries()) {
    const [i, j] = [Math.floor(at / n), at % n];
    const e = offsets.findLastIndex((first) => first <= i);
    // Sums in f32 are off by K units of 2^-24 of their terms' sizes, slopes are at most 1.13 but that of relu2.
    const [gate, up] = [0, 1].map((part) => {
      let [sum, size] = [bias[(2 * e + part) * rows + j]!, 0];
      for (let c = 0; c < k; c++) {
        const term = x[i * k + c]! * cases[2 * e + part]!.value(j, c);
        [sum, size] = [sum + term, size + Math.abs(term)];
      }
      return { sum, off: (size + Math.abs(sum)) * k * 2 ** -24 };
    }) as [{ sum: number; off: number }, { sum: number; off: number }];
    const want = made(gate.sum, up.sum);
    const slope = name === 'relu2' ? 2 * (Math.abs(gate.sum) + gate.off) : 1.13;
    const bound =
      slope * gate.off * (Math.abs(up.sum) + up.off + 1) +
      (Math.abs(made(gate.sum, 1)) + Math.abs(gate.sum) + slope * gate.off) * up.off +
      Math.abs(want) * 2 ** -11 * 1.01 +
      2 ** -25;
    const got = fromHalf(bits);
    const infinite = Math.abs(want) > 65504 - bound && Math.abs(got) >= 65504 && got > 0 === want > 0;
    assert.ok(infinite || Math.abs(got - want) <= bound, `${type.name} ${name} ${i} ${j}: ${got} and ${want}`);
  }
}

test('gate and up interleaved, every type and activation: rows of what they make, rounded once', async () => {
  const names = Object.keys(GATINGS) as (keyof typeof GATINGS)[];
  for (const [at, type] of QUANT_TYPES.entries()) await checkGated(type, names[at % names.length]!, 64, false);
  for (const [at, type] of QUANT_TYPES.filter(({ kind }) => kind === 'int').entries())
    await checkGated(type, names[at % names.length]!, [0, 32, 128][at % 3]!, true);
});

test('blocks of gate and up by turns are interleaved in place: as those apart', async () => {
  const [experts, down, across] = [2, 3, 5];
  const words = Array.from({ length: 8 }, (_, i) => ['u8', [across, 512 * (i + 1)], { of: 'words', bits: i + 1 }]);
  for (const [dtype, rest, p] of [
    ...(words as [DType, number[], Interleaving][]),
    ['u8', [across, 32], { of: 'sides' }],
    ['bf16', [across, 32], { of: 'sides' }],
    ['f16', [], { of: 'rows' }],
  ] as [DType, number[], Interleaving][]) {
    const each = p.of === 'rows' ? 32 : 1;
    const apart = allocate(dtype, [experts, 2 * down * each, ...rest]);
    const turns = allocate(dtype, [experts * down, 2 * each, ...rest]);
    const random = new Random(apart.byteLength);
    apart.bytes().set(Uint8Array.from({ length: apart.byteLength }, () => random.integer(0, 255)));
    const size = apart.byteLength / (2 * experts * down);
    for (let to = 0; to < 2 * experts * down; to++) {
      const [block, part] = [Math.floor(to / 2), to % 2];
      const from = (Math.floor(block / down) * 2 + part) * down + (block % down);
      turns.bytes().set(apart.bytes().subarray(from * size, (from + 1) * size), to * size);
    }
    const made = allocate(dtype, apart.shape);
    ops.interleaveGates(rt, apart, made, p);
    ops.interleaveGates(rt, turns, turns, p);
    await rt.sync();
    assert.deepEqual(turns.bytes(), made.bytes(), JSON.stringify(p));
    ops.interleaveGates(rt, apart, apart, p);
    const said = /y must not be x, unless blocks stand by turns/;
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', message: said });
  }
});

test('gates and shapes that there are not are refused', async () => {
  const [offsets, y] = [i32([0, 1, 4]), allocate('f16', [4, 32])];
  for (const [more, said] of [
    [{ gate: 'tanh' as 'silu' }, /gate is 'tanh', not silu, gelu, .* or clamped/],
    [{ gate: 'silu', limit: -1 }, /limit is -1.0*, not positive/],
    [{ gate: 'clamped', alpha: 0, limit: 1 }, /alpha is 0.0*, not positive/],
    [{ gate: 'silu' }, /weights has the shape/],
  ] as const) {
    ops.gemmExperts(rt, x, offsets, w, undefined, y, u4, { groupSize: 128, ...more });
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', message: said });
  }
  for (const [shape, said] of [
    [[2, 3, 1, 32], /x has 3 packed blocks, not as many of up as of the gate/],
    [[2, 2, 32], /x has the shape/],
  ] as const) {
    ops.interleaveGates(rt, allocate('f16', shape), allocate('f16', shape), { of: 'sides' });
    await assert.rejects(rt.sync(), { code: 'LPQ_NATIVE_ARGUMENT', message: said });
  }
  ops.interleaveGates(rt, w.scales, allocate('f16', w.scales.shape), { of: 'words', bits: 9 });
  await assert.rejects(rt.sync(), { code: /LPQ_NATIVE/ });
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
