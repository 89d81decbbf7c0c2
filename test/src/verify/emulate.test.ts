import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, fromTyped, type NativeRuntime, type Tensor, typed } from '../../../native/binding.js';
import { quantType, typeParams } from '../../../src/core/quant-type.js';
import { dequantized } from '../../../src/verify/dequantize.js';
import { laneProgram } from '../../../src/verify/emulate-lanes.js';
import { emulate } from '../../../src/verify/native.js';
import { marlinScales, marlinWords } from './layouts.js';
import { bitstream, half, random } from './numbers.js';

const runtime = createRuntime(2);

interface Case {
  codes: Uint8Array;
  scales: Uint16Array;
  packed: Int32Array;
  packedScales: Uint16Array;
}

function draw(n: number, k: number, groups: number, seed: number): Case {
  const next = random(seed);
  const codes = Uint8Array.from({ length: n * k }, () => (next() >>> 9) % 16);
  // fp16 scales of every size, subnormals among them.
  const scales = Uint16Array.from({ length: n * groups }, () => (next() >>> 5) % 0x3c00);
  return {
    codes,
    scales,
    packed: marlinWords(n, k, (row, i) => codes[row * k + i]!),
    packedScales: marlinScales(n, groups, (row, g) => scales[row * groups + g]!),
  };
}

function run(rt: NativeRuntime, n: number, k: number, groups: number, c: Case, seed = 1) {
  const t = (dtype: 'i32' | 'f16' | 'u8', shape: number[], data: ArrayBufferView): Tensor =>
    fromTyped(dtype, shape, data);
  const codes = bitstream(n, k, 4, 8, (row, i) => c.codes[row * k + i]!);
  return emulate(
    rt,
    'lanes',
    [
      t('f16', [n, groups], c.scales),
      t('f16', [n, groups], new Uint16Array(n * groups).fill(0x4800)),
      t('u8', [n, k / 2], codes),
      t('i32', [k / 16, 2 * n], c.packed),
      t('f16', [groups, n], c.packedScales),
    ],
    {
      ...typeParams(quantType('u4')),
      ...{ program: laneProgram('marlin'), tensors: 'packed scales' },
      ...{ np: n, kp: k, k, groups, group: k / groups, zero: 8 },
      ...{ seed, strips: Array.from({ length: n / 64 }, (_, i) => i) },
    },
  );
}

for (const [n, k, groups] of [
  [256, 128, 1],
  [128, 512, 4],
  [64, 1024, 1],
] as const)
  test(`[${n}, ${k}] in ${groups} groups: every output is inside the derived bound, on any number of threads`, async () => {
    for (let seed = 1; seed < 4; seed++) {
      const c = draw(n, k, groups, seed);
      const result = await run(runtime, n, k, groups, c, seed);
      assert.equal(result.registers.count, 0);
      assert.equal(result.outputs.count, 0);
      // The bound is a worst case, but not an empty one: rounding really uses a part of it.
      assert.ok(result.ratio > 0.005 && result.ratio <= 1, `ratio ${result.ratio}`);
      assert.deepEqual(await run(createRuntime(1), n, k, groups, c, seed), result);
    }
  });

test('a wrong nibble shows in a register at its row and column', async () => {
  const c = draw(64, 128, 1, 9);
  c.packed[128 * 3 + 4 * 6 + 2]! ^= 1 << 28; // k tile 3, lane 6, word 2, nibble 7: n = 32+8+1, k = 48 + 4+1+8
  const { registers, outputs } = await run(runtime, 64, 128, 1, c);
  assert.deepEqual([registers.count, registers.row, registers.column], [1, 41, 61]);
  assert.ok(outputs.count > 0 && outputs.column === 41);
});

test('the per-channel permutation on grouped scales, and the reverse, give wrong outputs', async () => {
  for (const groups of [1, 2]) {
    const c = draw(64, 256, groups, 4);
    const other = groups === 1 ? marlinScales(64, 2, (row) => c.scales[row]!).slice(0, 64) : undefined;
    if (other) c.packedScales = other;
    else
      c.packedScales = Uint16Array.from(
        [0, 1].flatMap((g) => [...marlinScales(64, 1, (row) => c.scales[row * 2 + g]!)]),
      );
    const { registers, outputs } = await run(runtime, 64, 256, groups, c);
    // Scales of groups are in the registers, that of a whole row comes after the sum.
    assert.equal(registers.count > 100, groups > 1, `${registers.count}`);
    assert.ok(outputs.count > 100, `${outputs.count}`);
  }
});

test('a scale that is NaN or infinite is an output out of bounds, not a crash', async () => {
  const c = draw(64, 128, 1, 5);
  c.packedScales[8] = 0x7e00;
  c.packedScales[16] = 0x7c00;
  const { outputs } = await run(runtime, 64, 128, 1, c);
  assert.ok(outputs.count >= 16);
});

test('dequantize rounds once to fp16 and bf16, to nearest even', async () => {
  const next = random(3);
  const k = 4096;
  const scales = Float32Array.from({ length: k }, (_, i) =>
    // Every magnitude from below the smallest subnormal to beyond 65504, and exact ties.
    i % 4 === 0
      ? half(next() % 0x7c00) + 2 ** -25 * (1 + (next() % 3))
      : (next() / 2 ** 32 + 0.5) * 2 ** ((next() % 48) - 28),
  );
  const codes = fromTyped('u8', [1, k / 8], new Uint8Array(k / 8).fill(255));
  const module = {
    type: 'u1',
    shape: [1, k] as [number, number],
    scales: { dtype: 'f32' as const, block: [1, 1] as [number, number], global: false },
    zeros: { kind: 'none' as const },
  };
  for (const [dtype, digits, lowest, top] of [
    ['f16', 10, -14, 65504],
    ['bf16', 7, -126, Infinity],
  ] as const) {
    const parts = new Map([
      ['codes' as const, codes],
      ['scales' as const, fromTyped('f32', [1, k], scales)],
    ]);
    const w = await dequantized(runtime, module, { parts }, dtype);
    typed<Uint16Array>(w).forEach((bits, i) => {
      const x = scales[i]!;
      const unit = 2 ** (Math.max(Math.floor(Math.log2(x)), lowest) - digits);
      const near = x / unit;
      const low = Math.floor(near);
      const rounded = (near - low > 0.5 || (near - low === 0.5 && low % 2 === 1) ? low + 1 : low) * unit;
      const got =
        dtype === 'f16'
          ? bits === 0x7c00
            ? Infinity
            : half(bits)
          : new Float32Array(Uint32Array.of(bits << 16).buffer)[0];
      assert.equal(got, rounded > top ? Infinity : rounded, `${x}`);
    });
  }
});
