import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { Artifact } from '../../../formats/artifact/read.js';
import { awqTensors } from '../../../formats/awq/layout.js';
import { fp4Tensors } from '../../../formats/compressed-tensors/layout.js';
import { quantizationConfig } from '../../../formats/compressed-tensors/schemes.js';
import { createRuntime, fromTyped, typed } from '../../../native/binding.js';
import { pack } from '../../../src/layout/engine.js';
import { awqWords } from '../../../src/pack/layouts/awq.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { planPack } from '../../../src/pack/plan.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { designed, scratch } from '../../formats/scratch.js';
import { checkpointOf, type Made, made } from './checkpoint.js';

const runtime = createRuntime(2);
const uint8 = { kind: 'int', dtype: 'u8' } as const;
const int16 = { kind: 'int', dtype: 'i16' } as const;

/** Packs, has the verifier prove it with and without the checkpoint, and opens it. */
async function proved(target: string, modules: Record<string, Made>) {
  const dir = scratch();
  const input = await checkpointOf(dir, 'canonical', modules);
  const output = path.join(dir, 'packed');
  const report = await packCheckpoint({ input, target, output, runtime });
  for (const against of [undefined, input.dir]) {
    const found = await verifyArtifact({ dir: output, against, runtime });
    assert.deepEqual(found.failures, []);
  }
  input.close();
  const artifact = Artifact.open(output);
  const config = artifact.config.quantization_config as Record<string, unknown>;
  return { report, artifact, config, output };
}

/** The value that element (row n, column k) of a weight stands for, from the plain arrays it was made of. */
function offsetCode(module: Made, n: number, k: number): number {
  const bits = Number(module.declaration.type.slice(1));
  const signed = module.declaration.type.startsWith('i');
  return (module.codes[n * module.declaration.shape[1] + k]! + (signed ? 2 ** (bits - 1) : 0)) % 2 ** bits;
}

test('compressed-tensors-w8a8: the kernel of the stored bytes, against activations rounded by the verifier', async () => {
  const modules = {
    'l.0': made({ type: 'i8', n: 70, k: 160, scaleDtype: 'bf16' }),
    'l.1': made({ type: 'f8e4m3', n: 70, k: 160, scaleDtype: 'f16', seed: 2 }),
    'l.2': made({ type: 'i8', n: 6, k: 20, seed: 3 }), // K is no multiple of 16: no kernel
  };
  const { output } = await proved('compressed-tensors-w8a8', modules);
  const found = await verifyArtifact({ dir: output, runtime, kernel: runtime });
  assert.deepEqual(found.failures, []);
  const ratio = Object.fromEntries(found.modules.map((module) => [module.name, module.kernelRatio]));
  assert.ok(ratio['l.0']! > 0 && ratio['l.0']! <= 1 && ratio['l.1']! > 0 && ratio['l.1']! <= 1, JSON.stringify(ratio));
  assert.equal(ratio['l.2'], undefined);
});

test('awq: the words of the specification', async () => {
  // The worked example: the codes 1 to 8 of eight columns make 0x86427531.
  const words = fromTyped('i32', [1, 1], new Int32Array(1));
  pack(runtime, awqWords(8, 1), fromTyped('u8', [8, 1], Uint8Array.of(1, 2, 3, 4, 5, 6, 7, 8)), words);
  await runtime.sync();
  assert.equal(typed<Int32Array>(words)[0]! >>> 0, 0x86427531);
});

test('awq: any shape, group and zero point decode to what was packed', async () => {
  const shapes = fc.record({
    n: fc.integer({ min: 1, max: 6 }).map((eights) => eights * 8),
    groups: fc.integer({ min: 1, max: 4 }),
    size: fc.constantFrom(1, 7, 16, 32),
    kind: fc.constantFrom('i4', 'u4 const', 'u4 zeros', 'i4 zeros'),
    channel: fc.boolean(),
    seed: fc.integer({ min: 1, max: 1000 }),
  });
  await fc.assert(
    fc.asyncProperty(shapes, async ({ n, groups, size, kind, channel, seed }) => {
      const zeros =
        kind === 'u4 zeros'
          ? uint8
          : kind === 'i4 zeros'
            ? int16
            : kind === 'u4 const'
              ? ({ kind: 'const', value: 3 } as const)
              : undefined;
      const module = made({
        type: kind.slice(0, 2),
        n,
        k: groups * size,
        ...(channel ? {} : { group: size }),
        ...(zeros && { zeros }),
        ...(kind === 'i4 zeros' && { zeroRange: [-8, 7] as const }),
        seed,
      });
      const { artifact, config } = await proved('awq', { 'model.layers.0.q': module });
      const at = (part: string) => artifact.tensor(`model.layers.0.q.${part}`);
      const [qweight, qzeros] = [typed<Int32Array>(at('qweight')), typed<Int32Array>(at('qzeros'))];
      const scales = typed<Uint16Array>(at('scales'));
      const order = [0, 4, 1, 5, 2, 6, 3, 7];
      const cut = (words: Int32Array, row: number, column: number): number =>
        (words[(row * n) / 8 + Math.floor(column / 8)]! >>> (4 * order[column % 8]!)) & 15;
      for (let row = 0; row < n; row++) {
        for (let k = 0; k < groups * size; k++) assert.equal(cut(qweight, k, row), offsetCode(module, row, k));
        for (let g = 0; g < module.groups; g++) {
          const index = row * module.groups + g;
          const zero =
            kind === 'u4 const' ? 3 : kind === 'i4' ? 8 : module.zeros[index]! + (kind === 'i4 zeros' ? 8 : 0);
          assert.equal(cut(qzeros, g, row), zero);
          assert.equal(scales[g * n + row], module.scales[index]);
        }
      }
      assert.deepEqual(config, {
        quant_method: 'awq',
        bits: 4,
        group_size: channel ? -1 : size,
        zero_point: true,
        version: 'gemm',
        modules_to_not_convert: ['lm_head', 'model.layers.0.mlp.gate'],
      });
    }),
    { numRuns: 25 },
  );
});

test('awq: one group size; what it does not take stays dense, with the reason', async () => {
  const modules = {
    'a.0': made({ type: 'i4', n: 16, k: 64, group: 32 }),
    'a.1': made({ type: 'u4', n: 16, k: 64, group: 32, zeros: uint8, seed: 2 }),
    'a.2': made({ type: 'i4', n: 16, k: 64, group: 16, seed: 3 }),
    'a.3': made({ type: 'i8', n: 16, k: 64, group: 32, seed: 4 }),
    'a.4': made({ type: 'i4', n: 12, k: 64, group: 32, seed: 5 }),
    'a.5': made({ type: 'i4', n: 16, k: 64, group: 32, extras: ['g_idx'], seed: 6 }),
    'a.6': made({ type: 'i4', n: 16, k: 64, group: 32, scaleDtype: 'bf16', seed: 7 }),
  };
  const { artifact, report, config, output } = await proved('awq', modules);
  assert.match(report.notes[0]!, /one group size: 1 modules with a group size other than 32/);
  const note = (name: string) => artifact.module(name).notes[0]!;
  assert.match(note('a.2'), /its group size is 16, that of the checkpoint is 32/);
  assert.match(note('a.3'), /it has 8 bits, and AWQ has 4/);
  assert.match(note('a.4'), /N = 12 is not a multiple of 8/);
  assert.match(note('a.5'), /g_idx, which AWQ does not have/);
  assert.match(note('a.6'), /some of its bf16 scales are not exact in f16/);
  assert.deepEqual(config.modules_to_not_convert, [
    'a.2',
    'a.3',
    'a.4',
    'a.5',
    'a.6',
    'lm_head',
    'model.layers.0.mlp.gate',
  ]);
  assert.deepEqual(JSON.parse(readFileSync(path.join(output, 'quantize_config.json'), 'utf8')), config);
  assert.throws(
    () => awqTensors('m', { shape: [12, 64], granularity: { kind: 'channel' } }),
    designed('LPQ_PACK', /'m'/),
  );
});

test('awq: a plain linear whose name is part of a quantized one is refused, and nothing is left', async () => {
  const dir = scratch();
  // The loader looks for 'model.layers.0.mlp.gate' inside names, and would leave gate_proj unquantized.
  const input = await checkpointOf(dir, 'canonical', {
    'model.layers.0.mlp.gate_proj': made({ type: 'i4', n: 16, k: 64, group: 32 }),
  });
  const output = path.join(dir, 'packed');
  await assert.rejects(
    packCheckpoint({ input, target: 'awq', output, runtime }),
    designed(
      'LPQ_PACK',
      /'model\.layers\.0\.mlp\.gate' plain: its loaders would leave 'model\.layers\.0\.mlp\.gate_proj'/,
    ),
  );
  input.close();
});

const microscaled = {
  nv: { type: 'f4e2m1', k: 64, group: 16, scaleDtype: 'f8_e4m3', global: true },
  mx: { type: 'f4e2m1', k: 64, group: 32, scaleDtype: 'f8_e8m0' },
} as const;

test('compressed-tensors: FP8, NVFP4 and MXFP4 beside integers; every group names its form', async () => {
  const modules = {
    'l.int': made({ type: 'i4', n: 8, k: 64, group: 32 }),
    'l.fp8': made({ type: 'f8e4m3', n: 6, k: 20, scaleDtype: 'bf16', seed: 2 }),
    'l.block': made({ type: 'f8e4m3', n: 32, k: 64, group: 16, block: 16, scaleDtype: 'f32', seed: 3 }),
    'l.nv': made({ n: 5, ...microscaled.nv, seed: 4 }),
    'l.mx': made({ n: 5, ...microscaled.mx, seed: 5 }),
  };
  const { artifact, config } = await proved('compressed-tensors', modules);
  const bytes = (name: string): number[] => [...artifact.tensor(name).bytes()];
  const spec = (name: string) => {
    const { dtype, shape } = artifact.weights.spec(name);
    return `${dtype} [${shape}]`;
  };
  assert.equal(spec('l.fp8.weight'), 'F8_E4M3 [6,20]');
  assert.deepEqual(bytes('l.fp8.weight'), modules['l.fp8'].codes);
  assert.equal(spec('l.fp8.weight_scale'), 'BF16 [6,1]');
  assert.equal(spec('l.block.weight_scale'), 'F32 [2,4]');
  for (const name of ['l.nv', 'l.mx'] as const) {
    // Element 2i is the low nibble of byte i.
    const nibbles = bytes(`${name}.weight_packed`).flatMap((byte) => [byte & 15, byte >> 4]);
    assert.deepEqual(nibbles, modules[name].codes);
    assert.equal(spec(`${name}.weight_packed`), 'U8 [5,32]');
  }
  assert.equal(spec('l.nv.weight_scale'), 'F8_E4M3 [5,4]');
  assert.equal(spec('l.mx.weight_scale'), 'U8 [5,2]');
  assert.deepEqual(bytes('l.mx.weight_scale'), [...(modules['l.mx'].data.scales as Uint8Array)]);
  // Values are divided by it: the second level of the fixture is 1/2.
  assert.deepEqual([...typed<Float32Array>(artifact.tensor('l.nv.weight_global_scale'))], [2]);
  assert.equal(config.format, 'mixed-precision');
  const groups = Object.values(
    config.config_groups as Record<string, { targets: string[]; format: string; weights: object }>,
  );
  const about = (name: string) => groups.find(({ targets }) => targets.includes(name))!;
  assert.deepEqual(
    Object.keys(modules).map((name) => about(name).format),
    ['pack-quantized', 'float-quantized', 'float-quantized', 'nvfp4-pack-quantized', 'mxfp4-pack-quantized'],
  );
  const weights = { symmetric: true, dynamic: false, actorder: null, observer: 'minmax', observer_kwargs: {} };
  const float8 = { ...weights, num_bits: 8, type: 'float', group_size: null };
  const float4 = { ...weights, num_bits: 4, type: 'float', block_structure: null };
  assert.deepEqual(about('l.fp8').weights, { ...float8, strategy: 'channel', block_structure: null });
  assert.deepEqual(about('l.block').weights, { ...float8, strategy: 'block', block_structure: [16, 16] });
  assert.deepEqual(about('l.nv').weights, { ...float4, strategy: 'tensor_group', group_size: 16 });
  assert.deepEqual(about('l.mx').weights, { ...float4, strategy: 'group', group_size: 32 });
});

test('compressed-tensors-w8a8: signed bytes, one scale per row, activations by the token', async () => {
  const modules = {
    'l.0': made({ type: 'i8', n: 6, k: 20, scaleDtype: 'bf16' }),
    'l.1': made({ type: 'u8', n: 6, k: 20, zeros: { kind: 'const', value: 128 }, seed: 2 }),
    'l.2': made({ type: 'i8', n: 6, k: 64, group: 32, seed: 3 }),
    'l.3': made({ type: 'u8', n: 6, k: 20, zeros: uint8, seed: 4 }),
    'l.4': made({ type: 'i4', n: 6, k: 20, seed: 5 }),
  };
  const { artifact, config } = await proved('compressed-tensors-w8a8', modules);
  for (const name of ['l.0', 'l.1'] as const) {
    const stored = [...new Int8Array(artifact.tensor(`${name}.weight`).bytes())];
    assert.deepEqual(
      stored,
      modules[name].codes.map((_, i) => offsetCode(modules[name], Math.floor(i / 20), i % 20) - 128),
    );
    assert.equal(artifact.weights.spec(`${name}.weight`).dtype, 'I8');
  }
  assert.match(artifact.module('l.2').notes[0]!, /one scale per row\. Quantize it with --group-size channel/);
  assert.match(artifact.module('l.3').notes[0]!, /no zero points/);
  assert.match(artifact.module('l.4').notes[0]!, /it has 4 bits and W8A8 has 8/);
  assert.equal(config.format, 'int-quantized');
  assert.deepEqual(config.ignore, ['l.2', 'l.3', 'l.4', 'lm_head', 'model.layers.0.mlp.gate']);
  const [group] = Object.values(config.config_groups as Record<string, Record<string, unknown>>);
  assert.deepEqual(group, {
    format: 'int-quantized',
    targets: ['Linear'],
    weights: {
      num_bits: 8,
      type: 'int',
      symmetric: true,
      strategy: 'channel',
      group_size: null,
      block_structure: null,
      dynamic: false,
      actorder: null,
      observer: 'minmax',
      observer_kwargs: {},
    },
    input_activations: {
      num_bits: 8,
      type: 'int',
      symmetric: true,
      strategy: 'token',
      group_size: null,
      block_structure: null,
      dynamic: true,
      actorder: null,
      observer: null,
      observer_kwargs: {},
    },
    output_activations: null,
  });
});

test('FP8 for both kinds of activations', async () => {
  const modules = { m: made({ type: 'f8e4m3', n: 6, k: 20, scaleDtype: 'f32' }) };
  const only = (await proved('compressed-tensors', modules)).config;
  const both = (await proved('compressed-tensors-w8a8', modules)).config;
  const activations = (config: Record<string, unknown>) =>
    Object.values(config.config_groups as Record<string, { input_activations: { type: string } | null }>)[0]!
      .input_activations;
  assert.deepEqual([only.format, both.format], ['float-quantized', 'float-quantized']);
  assert.equal(activations(only), null);
  assert.equal(activations(both)!.type, 'float');
});

test('types and scales that no form of compressed-tensors has are refused with a reason and a remedy', async () => {
  const cases: [string, Made, RegExp, RegExp][] = [
    ['compressed-tensors', made({ type: 'f6e3m2', n: 8, k: 64, group: 32 }), /f6e3m2 codes/, /integer type/],
    [
      'compressed-tensors',
      made({ type: 'f8e4m3', n: 8, k: 64, group: 32 }),
      /one scale per row or per square block/,
      /channel/,
    ],
    [
      'compressed-tensors',
      made({ type: 'f4e2m1', n: 8, k: 64, group: 32 }),
      /f16 scales in groups of 32 make neither NVFP4/,
      /--dtype/,
    ],
    ['compressed-tensors', made({ type: 'i8', n: 8, k: 64, group: 32, scaleDtype: 'f8_e8m0' }), /f8_e8m0/, /f16/],
    ['compressed-tensors-w8a8', made({ type: 'f4e2m1', n: 8, k: 64, group: 32 }), /f4e2m1/, /./],
  ];
  for (const [target, module, reason, remedy] of cases) {
    const input = await checkpointOf(scratch(), 'canonical', { m: module });
    const { refusal } = planPack(input, target);
    assert.equal(refusal?.code, 'LPQ_TARGET');
    assert.match(String(refusal?.message), reason);
    assert.match(String(refusal?.hint), remedy);
    input.close();
  }
  assert.throws(() => fp4Tensors('m', [4, 40], 'mxfp4'), designed('LPQ_PACK', /'m'/));
  const scheme = {
    format: 'pack-quantized',
    bits: 9,
    type: 'int',
    symmetric: true,
    strategy: 'channel',
    groupSize: null,
  } as const;
  assert.throws(
    () => quantizationConfig({ groups: [{ ...scheme, targets: ['Linear'] }], ignore: [] }),
    designed('LPQ_PACK', /1 to 8 bits/),
  );
});

test('one flipped bit in any tensor of any of these layouts is found', async () => {
  const targets: [string, Record<string, Made>][] = [
    ['awq', { m: made({ type: 'u4', n: 16, k: 64, group: 32, zeros: uint8 }) }],
    ['compressed-tensors', { m: made({ n: 4, ...microscaled.nv }) }],
    ['compressed-tensors', { m: made({ n: 4, ...microscaled.mx }) }],
    ['compressed-tensors-w8a8', { m: made({ type: 'i8', n: 4, k: 32 }) }],
  ];
  for (const [target, modules] of targets) {
    const { artifact, output } = await proved(target, modules);
    for (const name of Object.keys(artifact.module('m').tensors)) {
      const { begin, end } = artifact.weights.spec(name);
      const { path: file, header } = artifact.weights.fileOf(name);
      const before = readFileSync(file);
      const bytes = Buffer.from(before);
      const place = header.dataStart + begin + ((end - begin) >> 1);
      bytes[place] = bytes[place]! ^ 4;
      writeFileSync(file, bytes);
      const { failures } = await verifyArtifact({ dir: output, runtime });
      writeFileSync(file, before);
      // Its own hash, and what the bytes decode to.
      assert.ok(
        failures.some(({ check }) => check === 'tensors'),
        `${target} ${name}`,
      );
      assert.ok(
        failures.some(({ check }) => check === 'canonical' || check === 'padding'),
        `${target} ${name}`,
      );
    }
  }
});
