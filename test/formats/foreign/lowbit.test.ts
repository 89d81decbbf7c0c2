import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { directoryKind, openQuantized, openSource, SourceCheckpoint } from '../../../formats/canonical/source.js';
import { createRuntime, type Tensor, typed } from '../../../native/binding.js';
import { artifactSource } from '../../../src/artifact/open.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { designed, scratch } from '../scratch.js';
import type { Encoded } from './encode.js';
import { writeModel } from './mini.js';

const rt = createRuntime(1);
const root = scratch();
let count = 0;
const fresh = (): string => path.join(root, String(count++));

/** Numbers from 0 to limit - 1, the same every time. */
function bytes(length: number, limit: number, seed: number): Uint8Array {
  let state = ((seed + 1) * 2654435761) >>> 0;
  return Uint8Array.from({ length }, () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return Math.floor((state / 2 ** 32) * limit);
  });
}

/** E4M3 by its definition: sign, exponent bias 7, three bits of fraction; S.1111.111 is NaN. */
function e4m3(code: number): number {
  const [e, m] = [(code >> 3) & 15, code & 7];
  if (e === 15 && m === 7) return Number.NaN;
  return (code & 128 ? -1 : 1) * (e === 0 ? (m / 8) * 2 ** -6 : (1 + m / 8) * 2 ** (e - 7));
}

const E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, -0, -0.5, -1, -1.5, -2, -3, -4, -6];

/** Patterns that are numbers. */
const finite8 = (length: number, seed: number) => bytes(length, 256, seed).map((c) => ((c & 127) === 127 ? c - 1 : c));

function bf16Numbers(tensor: Tensor): number[] {
  const float = new Float32Array(1);
  const bits = new Uint32Array(float.buffer);
  return [...typed<Uint16Array>(tensor)].map((pattern) => {
    bits[0] = pattern << 16;
    return float[0] as number;
  });
}

const FP8 = { quant_method: 'fp8', fmt: 'e4m3', activation_scheme: 'dynamic', weight_block_size: [128, 128] };

test('FP8 blocks: a source in floats, block by block, the last ones cut; packed and read back the same', async () => {
  await fc.assert(
    fc.asyncProperty(
      fc.record({
        n: fc.integer({ min: 1, max: 300 }),
        k: fc.integer({ min: 1, max: 10 }).map((x) => x * 32),
        seed: fc.nat(99),
      }),
      async ({ n, k, seed }) => {
        const [rows, columns] = [Math.ceil(n / 128), Math.ceil(k / 128)];
        const codes = finite8(n * k, seed);
        // Kernels hold 16-bit scales, so only those of BF16 are packed below; whole numbers of 8 bits are BF16's too.
        const narrow = seed % 2 === 0;
        const scales = Float32Array.from(bytes(rows * columns, 200, seed + 1), (x) => (x + 1) / (narrow ? 1024 : 777));
        const stored = Uint16Array.from(new Uint32Array(scales.buffer), (pattern) => pattern >>> 16);
        const tensors: Encoded[] = [
          { name: 'm.weight', dtype: 'F8_E4M3', shape: [n, k], data: codes },
          {
            name: 'm.weight_scale_inv',
            dtype: narrow ? 'BF16' : 'F32',
            shape: [rows, columns],
            data: narrow ? stored : scales,
          },
          { name: 'norm.weight', dtype: 'BF16', shape: [1], data: Uint16Array.of(0x3f80) },
        ];
        const dir = await writeModel(fresh(), { tensors, settings: FP8 });
        assert.equal(directoryKind(dir), 'foreign:fp8');
        const expected = Float32Array.from(
          codes,
          (code, i) =>
            e4m3(code) * (scales[Math.floor(Math.floor(i / k) / 128) * columns + Math.floor((i % k) / 128)] as number),
        );
        const source = openSource(dir);
        assert.ok(source instanceof SourceCheckpoint);
        assert.deepEqual([...source.names()].sort(), ['m.weight', 'norm.weight']);
        assert.equal(source.weights.dtype('m.weight'), 'F32');
        assert.deepEqual(typed<Float32Array>(await source.tensor('m.weight')), expected);
        source.close();

        const output = fresh();
        const input = await openQuantized(dir);
        if (!narrow) {
          const refused = packCheckpoint({ input, target: 'tilus', output, runtime: rt });
          await assert.rejects(refused, designed('LPQ_TARGET', /its scales are f32/));
          return;
        }
        await packCheckpoint({ input, target: 'tilus', output, runtime: rt });
        const packed = artifactSource(output, rt);
        assert.deepEqual(typed<Float32Array>(await packed.tensor('m.weight')), expected);
        packed.close();
        const opened = await openQuantized(dir);
        const report = await verifyArtifact({ dir: output, opened, runtime: rt, emulate: false });
        assert.deepEqual(report.failures, []);
      },
    ),
    { numRuns: 12 },
  );
});

test('FP8 with one scale a weight or a row', async () => {
  const codes = finite8(32, 3);
  for (const shape of [[], [1], [4], [4, 1]]) {
    const scales = Float32Array.from({ length: shape[0] ?? 1 }, (_, i) => 0.5 + i);
    const tensors: Encoded[] = [
      { name: 'm.weight', dtype: 'F8_E4M3', shape: [4, 8], data: codes },
      { name: 'm.weight_scale', dtype: 'F32', shape, data: scales },
    ];
    const dir = await writeModel(fresh(), { tensors, settings: { quant_method: 'fp8' } });
    const source = openSource(dir);
    const row = (i: number) => (scales.length === 1 ? 0 : Math.floor(i / 8));
    assert.deepEqual(
      typed<Float32Array>(await source.tensor('m.weight')),
      Float32Array.from(codes, (code, i) => e4m3(code) * (scales[row(i)] as number)),
    );
    source.close();
  }
});

test('MXFP4 experts: a source of BF16 tensors [E, K, N], and modules of their own when packed', async () => {
  const [experts, n, k] = [3, 40, 96];
  const blocks = bytes((experts * n * k) / 2, 256, 5);
  const scales = bytes((experts * n * k) / 32, 40, 6).map((e) => e + 100);
  const name = 'model.layers.0.mlp.experts.gate_up_proj';
  const tensors: Encoded[] = [
    { name: `${name}_blocks`, dtype: 'U8', shape: [experts, n, k / 32, 16], data: blocks },
    { name: `${name}_scales`, dtype: 'U8', shape: [experts, n, k / 32], data: scales },
    { name: `${name}_bias`, dtype: 'BF16', shape: [experts, n], data: new Uint16Array(experts * n) },
  ];
  const dir = await writeModel(fresh(), { tensors, settings: { quant_method: 'mxfp4' } });
  const value = (e: number, row: number, i: number): number => {
    const at = (e * n + row) * k + i;
    const byte = blocks[Math.floor(at / 2)] as number;
    return (E2M1[i % 2 === 0 ? byte & 15 : byte >> 4] as number) * 2 ** ((scales[Math.floor(at / 32)] as number) - 127);
  };
  const source = openSource(dir);
  assert.deepEqual([...source.names()].sort(), [name, `${name}_bias`]);
  assert.deepEqual(source.shape(name), [experts, k, n]);
  const got = bf16Numbers(await source.tensor(name));
  const expected: number[] = [];
  for (let e = 0; e < experts; e++)
    for (let i = 0; i < k; i++) for (let row = 0; row < n; row++) expected.push(value(e, row, i));
  assert.deepEqual(got, expected);
  source.close();

  const input = await openQuantized(dir);
  assert.deepEqual(
    input.moduleNames(),
    [0, 1, 2].flatMap((e) => ['gate', 'up'].map((part) => `model.layers.0.mlp.experts.${e}.${part}_proj`)),
  );
  const output = fresh();
  await packCheckpoint({ input, target: 'tilus', output, runtime: rt });
  const packed = artifactSource(output, rt);
  // The output features of gate and up take turns.
  for (const [turn, part] of ['gate', 'up'].entries()) {
    const weight = typed<Float32Array>(await packed.tensor(`model.layers.0.mlp.experts.2.${part}_proj.weight`));
    assert.deepEqual(
      [...weight].map((x) => x + 0),
      Array.from({ length: (n / 2) * k }, (_, i) => value(2, 2 * Math.floor(i / k) + turn, i % k) + 0),
    );
  }
  packed.close();
});

test('MXFP4: every code under every scale is exact in BF16, infinite beyond it, NaN for 255', async () => {
  const scales = Uint8Array.from({ length: 256 }, (_, e) => e);
  const blocks = Uint8Array.from({ length: 256 * 16 }, (_, i) => ((i % 16) << 4) | (i % 16));
  const tensors: Encoded[] = [
    { name: 'x_blocks', dtype: 'U8', shape: [1, 256, 1, 16], data: blocks },
    { name: 'x_scales', dtype: 'U8', shape: [1, 256, 1], data: scales },
  ];
  const source = openSource(await writeModel(fresh(), { tensors, settings: { quant_method: 'mxfp4' } }));
  const got = bf16Numbers(await source.tensor('x'));
  source.close();
  for (let e = 0; e < 256; e++)
    for (let i = 0; i < 32; i++) {
      const exact = (E2M1[i >> 1] as number) * 2 ** (e - 127);
      const expected = e === 255 ? Number.NaN : Math.abs(exact) >= 2 ** 128 ? Math.sign(exact) * Infinity : exact;
      assert.ok(Object.is(got[i * 256 + e], expected), `${i} ${e}: ${got[i * 256 + e]}, not ${expected}`);
    }
});

const compressed = (format: string, weights: object) => ({
  quant_method: 'compressed-tensors',
  format,
  ignore: [],
  config_groups: { group_0: { targets: ['Linear'], weights } },
});

async function weightFrom(tensors: Encoded[], settings: object): Promise<Float32Array> {
  const source = openSource(await writeModel(fresh(), { tensors, settings }), rt);
  const weight = typed<Float32Array>(await source.tensor('m.weight'));
  source.close();
  return weight;
}

test('nvfp4 and mxfp4: two codes a byte, two-level and power-of-two scales', async () => {
  const [n, k] = [5, 64];
  const codes = bytes((n * k) / 2, 256, 7);
  const code = (i: number) =>
    E2M1[i % 2 === 0 ? (codes[i >> 1] as number) & 15 : (codes[i >> 1] as number) >> 4] as number;
  const level = finite8((n * k) / 16, 8).map((c) => c & 127);
  // A power of two, so that dividing by it and multiplying with its inverse are the same.
  const nvfp4 = await weightFrom(
    [
      { name: 'm.weight_packed', dtype: 'U8', shape: [n, k / 2], data: codes },
      { name: 'm.weight_scale', dtype: 'F8_E4M3', shape: [n, k / 16], data: level },
      { name: 'm.weight_global_scale', dtype: 'F32', shape: [1], data: Float32Array.of(512) },
    ],
    compressed('nvfp4-pack-quantized', {
      num_bits: 4,
      type: 'float',
      symmetric: true,
      strategy: 'tensor_group',
      group_size: 16,
    }),
  );
  assert.deepEqual(
    [...nvfp4].map((x) => x + 0),
    Array.from({ length: n * k }, (_, i) => (code(i) * e4m3(level[i >> 4] as number)) / 512 + 0),
  );
  const powers = bytes((n * k) / 32, 60, 9).map((e) => e + 90);
  const mxfp4 = await weightFrom(
    [
      { name: 'm.weight_packed', dtype: 'U8', shape: [n, k / 2], data: codes },
      { name: 'm.weight_scale', dtype: 'U8', shape: [n, k / 32], data: powers },
    ],
    compressed('mxfp4-pack-quantized', { num_bits: 4, type: 'float', strategy: 'group', group_size: 32 }),
  );
  assert.deepEqual(
    [...mxfp4].map((x) => x + 0),
    Array.from({ length: n * k }, (_, i) => code(i) * 2 ** ((powers[i >> 5] as number) - 127) + 0),
  );
});

test('int- and float-quantized: every strategy of scales', async () => {
  const [n, k] = [6, 32];
  const ints = Int8Array.from(bytes(n * k, 256, 10));
  const zeros = Int8Array.from(bytes(n, 256, 11));
  const rows = Float32Array.from({ length: n }, (_, i) => (i + 1) / 7);
  const asymmetric = await weightFrom(
    [
      { name: 'm.weight', dtype: 'I8', shape: [n, k], data: ints },
      { name: 'm.weight_scale', dtype: 'F32', shape: [n, 1], data: rows },
      { name: 'm.weight_zero_point', dtype: 'I8', shape: [n, 1], data: zeros },
    ],
    compressed('int-quantized', { num_bits: 8, type: 'int', symmetric: false, strategy: 'channel' }),
  );
  assert.deepEqual(
    asymmetric,
    Float32Array.from(ints, (q, i) => (q - (zeros[Math.floor(i / k)] as number)) * (rows[Math.floor(i / k)] as number)),
  );
  const floats = finite8(n * k, 12);
  const cases: [object, number[], (row: number, i: number) => number][] = [
    [{ strategy: 'tensor' }, [1], () => 0],
    [{ strategy: 'channel' }, [n, 1], (row) => row],
    [{ strategy: 'group', group_size: 16 }, [n, 2], (row, i) => row * 2 + (i >> 4)],
    [{ strategy: 'block', block_structure: [4, 24] }, [2, 2], (row, i) => (row >> 2) * 2 + Math.floor(i / 24)],
    [{ strategy: 'block', block_structure: '4x24' }, [2, 2], (row, i) => (row >> 2) * 2 + Math.floor(i / 24)],
  ];
  for (const [strategy, shape, at] of cases) {
    const total = shape.reduce((a, b) => a * b, 1);
    const scales = Float32Array.from({ length: total }, (_, i) => (i + 3) / 11);
    const got = await weightFrom(
      [
        { name: 'm.weight', dtype: 'F8_E4M3', shape: [n, k], data: floats },
        { name: 'm.weight_scale', dtype: 'F32', shape, data: scales },
      ],
      compressed('float-quantized', { num_bits: 8, type: 'float', ...strategy }),
    );
    assert.deepEqual(
      got,
      Float32Array.from(floats, (c, i) => e4m3(c) * (scales[at(Math.floor(i / k), i % k)] as number)),
      JSON.stringify(strategy),
    );
  }
});

test('refused: halves that do not fit, settings that mean nothing', async () => {
  const open = async (tensors: Encoded[], settings: object) =>
    openSource(await writeModel(fresh(), { tensors, settings }), rt);
  const weight: Encoded = { name: 'm.weight', dtype: 'F8_E4M3', shape: [4, 8], data: new Uint8Array(32) };
  const scale = (shape: number[]): Encoded => ({
    name: 'm.weight_scale_inv',
    dtype: 'F32',
    shape,
    data: new Float32Array(shape.reduce((a, b) => a * b, 1)),
  });
  await assert.rejects(open([weight], FP8), designed('LPQ_FOREIGN', /lacks the tensor 'm\.weight_scale_inv'/));
  await assert.rejects(open([weight, scale([2, 1])], FP8), designed('LPQ_FOREIGN', /got \[2,1\].*expected \[1,1\]/));
  await assert.rejects(
    open([weight, scale([1, 1])], { ...FP8, weight_block_size: [128] }),
    designed('LPQ_CONFIG', /'weight_block_size'/),
  );
  await assert.rejects(open([weight, scale([1, 1])], { ...FP8, fmt: 'e5m2' }), designed('LPQ_CONFIG', /'fmt'/));
  const blocks: Encoded = { name: 'x_blocks', dtype: 'U8', shape: [1, 2, 1, 16], data: new Uint8Array(32) };
  await assert.rejects(
    open([blocks], { quant_method: 'mxfp4' }),
    designed('LPQ_FOREIGN', /lacks the tensor 'x_scales'/),
  );
  const scales: Encoded = { name: 'x_scales', dtype: 'U8', shape: [1, 2, 2], data: new Uint8Array(4) };
  await assert.rejects(
    open([blocks, scales], { quant_method: 'mxfp4' }),
    designed('LPQ_FOREIGN', /x_scales.*\[1,2,2\]/),
  );
  const both: Encoded = { name: 'x', dtype: 'F32', shape: [1], data: new Float32Array(1) };
  await assert.rejects(
    open([blocks, { ...scales, shape: [1, 2, 1], data: new Uint8Array(2) }, both], { quant_method: 'mxfp4' }),
    designed('LPQ_FOREIGN', /'x' twice, in low bits and plain/),
  );
  const bad = (weights: object, format = 'pack-quantized') =>
    open([weight, scale([1, 1])], compressed(format, weights));
  await assert.rejects(bad({ num_bits: 4 }, 'marlin-24'), designed('LPQ_CONFIG', /'format'.*got "marlin-24"/));
  await assert.rejects(bad({ num_bits: 9 }), designed('LPQ_CONFIG', /num_bits/));
  await assert.rejects(bad({ num_bits: 4, strategy: 'token' }), designed('LPQ_CONFIG', /strategy/));
  await assert.rejects(bad({ num_bits: 4, strategy: 'group', group_size: 0 }), designed('LPQ_CONFIG', /group_size/));
  await assert.rejects(bad({ num_bits: 4, strategy: 'channel' }), designed('LPQ_FOREIGN', /holds no quantized module/));
});
