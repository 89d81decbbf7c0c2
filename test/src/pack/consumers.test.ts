import assert from 'node:assert/strict';
import { readdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { Artifact } from '../../../formats/artifact/read.js';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { symmetricZeroWords } from '../../../formats/gptq/layout.js';
import type { Checkpoint } from '../../../formats/safetensors/checkpoint.js';
import { createRuntime, typed } from '../../../native/binding.js';
import { quantType } from '../../../src/core/quant-type.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { planPack } from '../../../src/pack/plan.js';
import { decodePackQuantized } from '../../formats/compressed-tensors/decode.js';
import { decodeGptq } from '../../formats/gptq/decode.js';
import { designed, scratch } from '../../formats/scratch.js';
import { checkpointOf, type Made, made } from './checkpoint.js';

const runtime = createRuntime(2);
const uint8 = { kind: 'int', dtype: 'u8' } as const;
const int16 = { kind: 'int', dtype: 'i16' } as const;

/** Unsigned codes, groups of input features, and zeros [N, G] in offset form: what any consumer must read. */
function reference(module: Made) {
  const { type: name, shape, zeros: kind, granularity } = module.declaration;
  const [n, k] = shape;
  const type = quantType(name);
  const bias = type.kind === 'int' && type.signed ? 2 ** (type.bits - 1) : 0;
  const codes = new Uint8Array(n * k);
  const groups = new Int32Array(k);
  const length = granularity.kind === 'group' ? granularity.size : k;
  for (let column = 0; column < k; column++) {
    groups[column] = module.declaration.groupIndex
      ? (module.data.g_idx as Int32Array)[column]!
      : Math.floor(column / length);
    for (let row = 0; row < n; row++)
      codes[row * k + column] = (module.codes[row * k + column]! + bias) % 2 ** type.bits;
  }
  const zeros = Uint8Array.from(module.zeros, (zero) =>
    kind.kind === 'int' ? zero + bias : kind.kind === 'const' ? kind.value + bias : bias,
  );
  return { codes, zeros, groups, bits: type.bits, n, k };
}

async function packed(dir: string, target: string, modules: Record<string, Made>) {
  const input = await checkpointOf(dir, `canonical-${target}`, modules);
  const output = path.join(dir, target);
  const report = await packCheckpoint({ input, target, output, runtime });
  const artifact = Artifact.open(output);
  assert.deepEqual(await artifact.verifyTensors(), []);
  assert.deepEqual(await artifact.verifyFiles(), []);
  const config = (artifact.config as { quantization_config: Record<string, unknown> }).quantization_config;
  return { report, artifact, config, output };
}

function checkGptq(artifact: Artifact, name: string, module: Made, convention: 'v1' | 'v2'): void {
  const { codes, zeros, groups, bits, n, k } = reference(module);
  const i32 = (part: string): Int32Array => typed<Int32Array>(artifact.tensor(`${name}.${part}`));
  const decoded = decodeGptq(
    {
      qweight: i32('qweight'),
      qzeros: i32('qzeros'),
      scales: typed<Uint16Array>(artifact.tensor(`${name}.scales`)),
      gIdx: i32('g_idx'),
    },
    { bits, n, k, groups: module.groups, convention },
  );
  assert.deepEqual(decoded.codes, codes, name);
  assert.deepEqual(decoded.zeros, zeros, name);
  assert.deepEqual(decoded.scales, module.scales, name);
  assert.deepEqual(decoded.gIdx, groups, name);
}

test('gptq: symmetric 2, 3, 4 and 8 bits decode to what was packed', async () => {
  const dir = scratch();
  for (const bits of [2, 3, 4, 8]) {
    const modules = {
      'l.0.signed': made({ type: `i${bits}`, n: 64, k: 128, group: 32, seed: bits }),
      'l.1.unsigned': made({
        type: `u${bits}`,
        n: 96,
        k: 64,
        group: 32,
        zeros: { kind: 'const', value: 2 ** (bits - 1) },
      }),
    };
    const { artifact, config, output, report } = await packed(path.join(dir, String(bits)), 'gptq', modules);
    for (const [name, module] of Object.entries(modules)) {
      checkGptq(artifact, name, module, 'v1');
      const words = symmetricZeroWords(bits, 'v1');
      const zeros = typed<Int32Array>(artifact.tensor(`${name}.qzeros`));
      assert.ok(zeros.every((word, i) => word === words[i % words.length]));
    }
    assert.deepEqual([report.target, report.requested], ['gptq', 'gptq']);
    assert.deepEqual(
      { ...config, meta: undefined },
      {
        quant_method: 'gptq',
        checkpoint_format: 'gptq',
        bits,
        group_size: 32,
        desc_act: false,
        sym: true,
        static_groups: false,
        true_sequential: true,
        lm_head: false,
        damp_percent: 0.01,
        pack_dtype: 'int32',
        dynamic: { '-:^model\\.layers\\.0\\.mlp\\.gate$': {} },
        meta: undefined,
      },
    );
    assert.deepEqual(JSON.parse(readFileSync(path.join(output, 'quantize_config.json'), 'utf8')), config);
  }
});

test('gptq becomes gptq_v2 for asymmetric checkpoints, zeros of 0 included', async () => {
  const dir = scratch();
  const modules = {
    a: made({ type: 'u4', n: 64, k: 64, group: 32, zeros: uint8 }),
    b: made({ type: 'i4', n: 64, k: 64, group: 32, zeros: int16, zeroRange: [-8, 7], seed: 2 }),
    c: made({ type: 'i4', n: 64, k: 64, group: 32, seed: 3 }),
    d: made({ type: 'u3', n: 64, k: 64, zeros: uint8, seed: 4 }),
    e: made({ type: 'u4', n: 64, k: 64, group: 32, zeros: { kind: 'const', value: 3 }, seed: 5 }),
  };
  const { artifact, config, report } = await packed(dir, 'gptq', modules);
  for (const [name, module] of Object.entries(modules)) {
    checkGptq(artifact, name, module, 'v2');
    assert.equal(artifact.module(name).layout, 'gptq_v2');
  }
  assert.equal(report.target, 'gptq_v2');
  assert.match(report.notes[0]!, /Written as gptq_v2: 'a' is asymmetric/);
  assert.equal(config.checkpoint_format, 'gptq_v2');
  assert.equal(config.sym, false);
  assert.deepEqual(config.dynamic, {
    '+:^c$': { bits: 4, group_size: 32, desc_act: false, sym: true },
    '+:^d$': { bits: 3, group_size: -1, desc_act: false, sym: false },
    '-:^model\\.layers\\.0\\.mlp\\.gate$': {},
  });
});

test('gptq: group indices go along, permuted columns fall back', async () => {
  const modules = {
    indexed: made({ type: 'i4', n: 64, k: 96, group: 32, extras: ['g_idx'], seed: 2 }),
    permuted: made({ type: 'i4', n: 64, k: 96, group: 32, extras: ['permutation'] }),
  };
  const { artifact, config } = await packed(scratch(), 'gptq', modules);
  checkGptq(artifact, 'indexed', modules.indexed, 'v1');
  assert.equal(config.desc_act, true);
  assert.equal(artifact.module('permuted').layout, 'dense');
  assert.match(
    artifact.module('permuted').notes[0]!,
    /because its columns are permuted\. Quantize it with --order static/,
  );
});

test('compressed-tensors: 1 to 8 bits, symmetric and not, decode to what was packed', async () => {
  const dir = scratch();
  const modules: Record<string, Made> = {};
  for (let bits = 1; bits <= 8; bits++) {
    const seed = 10 * bits;
    modules[`l.${bits}.asym`] = made({ type: `u${bits}`, n: 24, k: 64, group: 32, zeros: uint8, seed });
    modules[`l.${bits}.odd`] = made({ type: `u${bits}`, n: 7, k: 37, zeros: { kind: 'const', value: 0 }, seed });
    if (bits > 1)
      modules[`l.${bits}.sym`] = made({ type: `i${bits}`, n: 10, k: 96, group: 32, scaleDtype: 'bf16', seed });
  }
  modules.indexed = made({ type: 'i4', n: 8, k: 64, group: 32, extras: ['g_idx'] });
  const { artifact, config } = await packed(dir, 'compressed-tensors', modules);
  for (const [name, module] of Object.entries(modules)) {
    const { codes, zeros, groups, bits, n, k } = reference(module);
    const at = `${name}.weight_zero_point`;
    const asymmetric = artifact.weights.has(at);
    assert.equal(asymmetric, !zeros.every((zero) => zero === 2 ** (bits - 1)), name);
    const decoded = decodePackQuantized(
      {
        weightPacked: typed<Int32Array>(artifact.tensor(`${name}.weight_packed`)),
        ...(asymmetric ? { weightZeroPoint: typed<Int32Array>(artifact.tensor(at)) } : {}),
      },
      { bits, n, k, groups: module.groups },
    );
    assert.deepEqual(decoded.codes, codes, name);
    assert.deepEqual(decoded.zeros, zeros, name);
    assert.deepEqual(typed<Uint16Array>(artifact.tensor(`${name}.weight_scale`)), module.scales);
    assert.deepEqual(artifact.tensor(`${name}.weight_scale`).dtype, module.declaration.scales.dtype);
    assert.deepEqual([...typed<BigInt64Array>(artifact.tensor(`${name}.weight_shape`))], [BigInt(n), BigInt(k)]);
    if (name === 'indexed') assert.deepEqual(typed<Int32Array>(artifact.tensor(`${name}.weight_g_idx`)), groups);
  }
  assert.equal(config.format, 'pack-quantized');
  assert.deepEqual(config.ignore, ['lm_head', 'model.layers.0.mlp.gate']);
  const groups = Object.values(
    config.config_groups as Record<string, { targets: string[]; weights: { actorder: unknown } }>,
  );
  assert.deepEqual(groups.flatMap(({ targets }) => targets).sort(), Object.keys(modules).sort());
  assert.deepEqual(groups.find(({ targets }) => targets.includes('indexed'))!.weights.actorder, 'group');
});

test('compressed-tensors: one scheme for all is said with the class name', async () => {
  const modules = { a: made({ type: 'i4', n: 8, k: 64, group: 32 }), b: made({ type: 'i4', n: 8, k: 32, group: 32 }) };
  const { config } = await packed(scratch(), 'compressed-tensors', modules);
  const [group, ...more] = Object.values(config.config_groups as Record<string, { targets: string[] }>);
  assert.deepEqual([group!.targets, more], [['Linear'], []]);
});

test('4-bit weight_packed is the transpose of qweight', async () => {
  const dir = scratch();
  const modules = { m: made({ type: 'i4', n: 64, k: 64, group: 32 }) };
  const a = typed<Int32Array>((await packed(dir, 'gptq', modules)).artifact.tensor('m.qweight'));
  const b = typed<Int32Array>((await packed(dir, 'compressed-tensors', modules)).artifact.tensor('m.weight_packed'));
  for (let row = 0; row < 64; row++)
    for (let word = 0; word < 8; word++) assert.equal(a[word * 64 + row], b[row * 8 + word]);
});

test('what a consumer cannot hold is planned as a plain weight, with the reason', async () => {
  const modules = {
    good: made({ type: 'i3', n: 64, k: 96, group: 32 }),
    odd_k: made({ type: 'i3', n: 64, k: 40 }),
    five: made({ type: 'i5', n: 64, k: 64 }),
    float: made({ type: 'f6e3m2', n: 64, k: 64 }),
    wide: made({ type: 'i4', n: 64, k: 64, scaleDtype: 'f32' }),
    e8m0: made({ type: 'i4', n: 64, k: 64, group: 32, scaleDtype: 'f8_e8m0' }),
  };
  const input = await checkpointOf(scratch(), 'canonical', modules);
  const reasons = (target: string): Record<string, string> =>
    Object.fromEntries(
      [...planPack(input, target).decisions].map(([name, decision]) => [
        name,
        decision.action === 'fallback' ? `${decision.form}: ${decision.reason}` : decision.action,
      ]),
    );
  assert.deepEqual(reasons('gptq'), {
    good: 'ok',
    odd_k: 'dense: K = 40 is not a multiple of 32, which 3-bit words need',
    five: 'dense: it holds 2, 3, 4 or 8 bits, not 5',
    float: 'dense: it holds f6e3m2 codes, not integers',
    wide: 'dense: its scales are f32, and GPTQ has f16 scales',
    e8m0: 'dense: its scales are f8_e8m0, and GPTQ has f16 scales',
  });
  assert.deepEqual(reasons('compressed-tensors'), {
    good: 'ok',
    odd_k: 'ok',
    five: 'ok',
    float: 'dense: it holds f6e3m2 codes, not integers',
    wide: 'ok',
    e8m0: 'dense: its scales are f8_e8m0',
  });
  input.close();
});

test('a plain weight is written for what falls back', async () => {
  const modules = {
    good: made({ type: 'i4', n: 64, k: 64, group: 32 }),
    five: made({ type: 'i5', n: 6, k: 8, group: 4, seed: 3 }),
  };
  const { artifact, config } = await packed(scratch(), 'gptq', modules);
  const { codes, n, k } = reference(modules.five);
  const weight = typed<Uint16Array>(artifact.tensor('five.weight'));
  const f32 = new Float32Array(1);
  const half = (bits: number): number => 2 ** ((bits >> 10) - 15) * (1 + (bits & 1023) / 1024);
  for (let row = 0; row < n; row++)
    for (let column = 0; column < k; column++) {
      // An 11-bit scale times a 5-bit code is exact in f32; bf16 then rounds to nearest even.
      f32[0] = (codes[row * k + column]! - 16) * half(modules.five.scales[row * 2 + Math.floor(column / 4)]!);
      const bits = new Uint32Array(f32.buffer)[0]!;
      const rounded = (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
      assert.equal(weight[row * k + column], rounded);
    }
  assert.equal(artifact.module('five').layout, 'dense');
  assert.match(artifact.module('five').notes[0]!, /as a plain weight, because it holds 2, 3, 4 or 8 bits, not 5/);
  assert.deepEqual(Object.keys(config.dynamic as object), ['-:^five$', '-:^model\\.layers\\.0\\.mlp\\.gate$']);
});

test('a module that was damaged after it was quantized is refused, and nothing is left', async () => {
  const dir = scratch();
  const modules = { m: made({ type: 'i4', n: 64, k: 64, group: 32 }) };
  const written = await checkpointOf(dir, 'canonical', modules);
  const { begin } = written.weights.spec('m.scales');
  const { path: file, header } = (written.weights as Checkpoint).fileOf('m.scales');
  written.close();
  const bytes = readFileSync(file);
  bytes[header.dataStart + begin] = (bytes[header.dataStart + begin] as number) ^ 1;
  writeFileSync(file, bytes);
  for (const target of ['gptq', 'compressed-tensors'])
    await assert.rejects(
      packCheckpoint({
        input: CanonicalCheckpoint.open(path.join(dir, 'canonical')),
        target,
        output: path.join(dir, 'out'),
        runtime,
      }),
      designed('LPQ_CANONICAL', /'m\.scales'/),
    );
  assert.deepEqual(readdirSync(dir), ['canonical']);
});

test('a carried tensor that was damaged after it was written is refused, and nothing is left', async () => {
  const dir = scratch();
  const written = await checkpointOf(dir, 'canonical', { m: made({ type: 'i4', n: 64, k: 64, group: 32 }) });
  const [carried] = Object.keys(written.manifest.carried) as [string];
  const { begin } = written.weights.spec(carried);
  const { path: file, header } = (written.weights as Checkpoint).fileOf(carried);
  written.close();
  const bytes = readFileSync(file);
  bytes[header.dataStart + begin] = (bytes[header.dataStart + begin] as number) ^ 1;
  writeFileSync(file, bytes);
  const input = CanonicalCheckpoint.open(path.join(dir, 'canonical'));
  assert.deepEqual(
    (await input.verifyHashes()).map(({ name }) => name),
    [carried],
  );
  await assert.rejects(
    packCheckpoint({ input, target: 'gptq', output: path.join(dir, 'out'), runtime }),
    (error: unknown) => (error as { code: string; message: string }).message.includes(carried),
  );
  assert.deepEqual(readdirSync(dir), ['canonical']);
});
