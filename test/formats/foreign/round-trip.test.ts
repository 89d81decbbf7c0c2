import assert from 'node:assert/strict';
import { copyFileSync, mkdirSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { PARTS } from '../../../formats/canonical/tensors.js';
import { openForeign } from '../../../formats/foreign/open.js';
import { createRuntime } from '../../../native/binding.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { type SchemeOptions, schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { scratch } from '../scratch.js';
import { awqTensors, type Encoded, randomCodes } from './encode.js';
import { linears, plain, writeModel } from './mini.js';
import { expectRoundTrip, expectSameTensors } from './round-trip.js';

const rt = createRuntime(1);
const root = scratch();
let count = 0;
const fresh = (): string => path.join(root, String(count++));

function random(length: number, limit: number, seed: number): Uint8Array {
  let state = ((seed + 1) * 2654435761) >>> 0;
  return Uint8Array.from({ length }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  });
}

/** E4M3 patterns that are positive numbers, or of either sign. */
const positive8 = (length: number, seed: number) => random(length, 126, seed).map((code) => code + 1);
const finite8 = (length: number, seed: number) => random(length, 256, seed).map((c) => ((c & 127) === 127 ? c - 1 : c));

const compressed = (format: string, weights: object, activations: object | null = null) => ({
  quant_method: 'compressed-tensors',
  format,
  ignore: [],
  config_groups: { group_0: { targets: ['Linear'], weights, input_activations: activations } },
});
const NVFP4 = { num_bits: 4, type: 'float', symmetric: true, strategy: 'tensor_group', group_size: 16 };
const perToken = (type: string) => ({ num_bits: 8, type, symmetric: true, strategy: 'token', dynamic: true });

test('awq: any shape, group and zero point, those at the ends included, pack to the same bytes', async () => {
  const shapes = fc.record({
    rows: fc.integer({ min: 1, max: 5 }),
    groups: fc.integer({ min: 1, max: 3 }),
    group: fc.constantFrom(32, 64, 128),
    symmetric: fc.boolean(),
    seed: fc.nat(1000),
  });
  await fc.assert(
    fc.asyncProperty(shapes, async ({ rows, groups, group, symmetric, seed }) => {
      const c = randomCodes({ n: 8 * rows, k: group * groups, bits: 4, group, symmetric, seed });
      const settings = { quant_method: 'awq', bits: 4, group_size: group, zero_point: true, version: 'gemm' };
      const dir = await writeModel(fresh(), { tensors: awqTensors('m', c), settings });
      await expectRoundTrip(rt, dir, fresh(), 'awq');
    }),
    { numRuns: 25 },
  );
});

test('nvfp4: any factor that weights are divided by comes back with its bits', async () => {
  // Every f32 whose reciprocal is a normal number; where fractions are above 1.41 two of them often share one.
  const factors = fc.oneof(
    fc.integer({ min: 0x00800000, max: 0x7e000000 }),
    fc.integer({ min: 0x3fc00000, max: 0x3fffffff }),
  );
  await fc.assert(
    fc.asyncProperty(factors, fc.integer({ min: 1, max: 9 }), fc.nat(1000), async (bits, n, seed) => {
      const k = 64;
      const factor = new Float32Array(Int32Array.of(bits).buffer);
      const tensors: Encoded[] = [
        { name: 'm.weight_packed', dtype: 'U8', shape: [n, k / 2], data: random((n * k) / 2, 256, seed) },
        { name: 'm.weight_scale', dtype: 'F8_E4M3', shape: [n, k / 16], data: positive8((n * k) / 16, seed + 1) },
        { name: 'm.weight_global_scale', dtype: 'F32', shape: [1], data: factor },
      ];
      const dir = await writeModel(fresh(), { tensors, settings: compressed('nvfp4-pack-quantized', NVFP4) });
      await expectRoundTrip(rt, dir, fresh(), 'compressed-tensors');
    }),
    { numRuns: 60 },
  );
});

test('mxfp4, int8 and fp8, scales by row, block and tensor, weights only and with activations by the token, pack to the same bytes', async () => {
  const [n, k] = [24, 64];
  const rows = Float32Array.from({ length: n }, (_, i) => (i + 1) / 700);
  const cases: [string, object, Encoded[]][] = [
    [
      'compressed-tensors',
      compressed('mxfp4-pack-quantized', { num_bits: 4, type: 'float', strategy: 'group', group_size: 32 }),
      [
        { name: 'm.weight_packed', dtype: 'U8', shape: [n, k / 2], data: random((n * k) / 2, 256, 1) },
        {
          name: 'm.weight_scale',
          dtype: 'U8',
          shape: [n, k / 32],
          data: random((n * k) / 32, 60, 2).map((e) => e + 90),
        },
      ],
    ],
    [
      'compressed-tensors-w8a8',
      compressed('int-quantized', { num_bits: 8, type: 'int', symmetric: true, strategy: 'channel' }, perToken('int')),
      [
        { name: 'm.weight', dtype: 'I8', shape: [n, k], data: Int8Array.from(random(n * k, 256, 3)) },
        { name: 'm.weight_scale', dtype: 'F32', shape: [n, 1], data: rows },
      ],
    ],
    ...['compressed-tensors', 'compressed-tensors-w8a8'].map((target): [string, object, Encoded[]] => [
      target,
      compressed(
        'float-quantized',
        { num_bits: 8, type: 'float', symmetric: true, strategy: 'channel' },
        target === 'compressed-tensors' ? null : perToken('float'),
      ),
      [
        { name: 'm.weight', dtype: 'F8_E4M3', shape: [n, k], data: finite8(n * k, 4) },
        { name: 'm.weight_scale', dtype: 'F32', shape: [n, 1], data: rows },
      ],
    ]),
  ];
  // Scales that blocks of weights (cut at the edges), groups of rows or the whole tensor share.
  const blocks: [object, number[]][] = [
    [{ strategy: 'block', block_structure: [8, 32] }, [3, 2]],
    [{ strategy: 'block', block_structure: [10, 24] }, [3, 3]],
    [{ strategy: 'block', block_structure: [24, 64] }, [1, 1]],
    [{ strategy: 'block', block_structure: [128, 128] }, [1, 1]],
    [{ strategy: 'tensor' }, [1]],
  ];
  for (const [strategy, shape] of blocks)
    cases.push([
      'compressed-tensors',
      compressed('float-quantized', { num_bits: 8, type: 'float', symmetric: true, ...strategy }),
      [
        { name: 'm.weight', dtype: 'F8_E4M3', shape: [n, k], data: finite8(n * k, 5) },
        {
          name: 'm.weight_scale',
          dtype: 'F32',
          shape,
          data: rows.slice(
            0,
            shape.reduce((a, b) => a * b, 1),
          ),
        },
      ],
    ]);
  cases.push([
    'compressed-tensors-w8a8',
    compressed('int-quantized', { num_bits: 8, type: 'int', symmetric: true, strategy: 'tensor' }, perToken('int')),
    [
      { name: 'm.weight', dtype: 'I8', shape: [n, k], data: Int8Array.from(random(n * k, 256, 6)) },
      { name: 'm.weight_scale', dtype: 'BF16', shape: [1], data: Uint16Array.of(0x3c12) },
    ],
  ]);
  for (const [target, settings, tensors] of cases) {
    const dir = await writeModel(fresh(), { tensors, settings });
    await expectRoundTrip(rt, dir, fresh(), target);
  }
});

/** Settings of lpq quantize, and the targets that hold what they give. */
const OWN: readonly (readonly [SchemeOptions, readonly string[]])[] = [
  [{ bits: 4, groupSize: 32 }, ['gptq', 'gptq_v2', 'awq', 'compressed-tensors']],
  [{ bits: 4, groupSize: 64, asym: true }, ['gptq_v2', 'awq', 'compressed-tensors']],
  [{ bits: 3, groupSize: 32, asym: true }, ['gptq_v2', 'compressed-tensors']],
  [{ bits: 2, groupSize: 32 }, ['gptq', 'compressed-tensors']],
  [{ bits: 8, groupSize: 'channel' }, ['gptq', 'compressed-tensors', 'compressed-tensors-w8a8']],
  [{ bits: 5, groupSize: 32 }, ['compressed-tensors']],
  [{ dtype: 'f8e4m3', groupSize: 'channel' }, ['compressed-tensors', 'compressed-tensors-w8a8']],
  [{ dtype: 'mxfp4' }, ['compressed-tensors']],
  [{ dtype: 'nvfp4' }, ['compressed-tensors']],
];

test('what lpq quantized and packed is read back with the same codes, scales and zero points, and packs to the same bytes', async () => {
  const source = await writeModel(fresh(), {
    tensors: [
      ...plain,
      ...linears.map(
        ({ name, n, k, weight }): Encoded => ({ name: `${name}.weight`, dtype: 'F32', shape: [n, k], data: weight }),
      ),
    ],
  });
  for (const [options, targets] of OWN) {
    const canonical = fresh();
    await quantizeCheckpoint([rt], {
      source,
      output: canonical,
      scheme: schemeFromOptions(options),
      rules: [],
      quantizer: rtnQuantizer(),
      calibration: undefined,
      lmHead: false,
      options: {},
      version: 'test',
    });
    const input = CanonicalCheckpoint.open(canonical);
    for (const target of targets) {
      const what = `${JSON.stringify(options)} ${target}`;
      const output = fresh();
      await packCheckpoint({ input, target, output, runtime: rt });
      // The artifact without lpq's own files is what another tool would have written.
      const foreign = fresh();
      mkdirSync(foreign);
      for (const file of ['model.safetensors', 'config.json'])
        copyFileSync(path.join(output, file), path.join(foreign, file));
      const { canonical: back } = openForeign(foreign);
      assert.deepEqual(back.moduleNames().sort(), input.moduleNames().sort(), what);
      for (const name of input.moduleNames()) compareModules(input, back, name, what);
      back.close();
      await expectRoundTrip(rt, foreign, fresh(), target);
      expectSameTensors(output, foreign);
    }
    input.close();
  }
});

/** Codes in offset form, since other formats have no two's complement; everything else as it is. */
function compareModules(own: CanonicalCheckpoint, back: CanonicalCheckpoint, name: string, what: string): void {
  const [one, other] = [own.module(name), back.module(name)];
  assert.deepEqual(other.shape, one.shape);
  assert.deepEqual(other.granularity, one.granularity, what);
  const bits = Number(/\d/.exec(one.type)?.[0]);
  const signed = /^i/.test(one.type);
  const flip = signed && !/^i/.test(other.type) ? 2 ** (bits - 1) : 0;
  for (const part of PARTS) {
    const [mine, theirs] = [own.part(name, part), back.part(name, part)];
    if (part === 'codes') {
      const codes = (tensor: NonNullable<typeof mine>) => unpack([...tensor.bytes()], bits);
      assert.deepEqual(
        codes(theirs!),
        codes(mine!).map((code) => code ^ flip),
        `${what} ${name} codes`,
      );
    } else if (part === 'zeros') {
      const zeros = (checkpoint: CanonicalCheckpoint, total: number): number[] => {
        const { zeros: kind } = checkpoint.module(name);
        const tensor = checkpoint.part(name, 'zeros');
        if (!tensor) return new Array(total).fill(kind.kind === 'const' ? kind.value : 0);
        const bytes = Buffer.from(tensor.bytes());
        return Array.from({ length: total }, (_, i) => (tensor.dtype === 'i16' ? bytes.readInt16LE(2 * i) : bytes[i]!));
      };
      const [n, k] = one.shape;
      const total = n * (one.granularity.kind === 'channel' ? 1 : k / one.granularity.size);
      assert.deepEqual(
        zeros(back, total),
        zeros(own, total).map((zero) => zero + flip),
        `${what} ${name} zeros`,
      );
    } else if (part === 'global_scale') {
      if (!mine) continue;
      // Read as the reciprocal of a reciprocal: the last bit may differ, that of the file does not.
      const value = (tensor: NonNullable<typeof mine>) => Buffer.from(tensor.bytes()).readFloatLE(0);
      assert.ok(Math.abs(value(theirs!) / value(mine) - 1) <= 2 ** -23, `${what} ${name} global_scale`);
    } else assert.deepEqual(theirs && [...theirs.bytes()], mine && [...mine.bytes()], `${what} ${name} ${part}`);
    mine?.dispose();
    theirs?.dispose();
  }
}

/** Codes of rows whose bits are a whole number of bytes. */
function unpack(bytes: readonly number[], bits: number): number[] {
  let big = 0;
  let held = 0;
  const out: number[] = [];
  for (const byte of bytes) {
    big |= byte << held;
    for (held += 8; held >= bits; held -= bits) {
      out.push(big & (2 ** bits - 1));
      big >>>= bits;
    }
  }
  return out;
}
