import assert from 'node:assert/strict';
import { cpSync, mkdirSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { createRuntime, fromTyped, typed } from '../../../native/binding.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { splitOf } from '../../../src/pack/parallel.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { scratch } from '../../formats/scratch.js';
import { ARCHITECTURES, PlainFile } from '../model/fixtures.js';
import { rounded } from './rounded.js';

const runtime = createRuntime(2);

test('Qwen3.5 as it is published, experts in one tensor and layers of multi-token prediction, goes through to what vLLM reads', async () => {
  const [from, dir] = [path.join(ARCHITECTURES, 'qwen3_5_moe'), scratch()];
  const source = path.join(dir, 'source');
  mkdirSync(source);
  cpSync(path.join(from, 'config.json'), path.join(source, 'config.json'));
  const file = new PlainFile(path.join(from, 'model.safetensors'));
  const prediction = ['mtp.fc.weight', 'mtp.norm.weight', 'mtp.layers.0.self_attn.q_proj.weight'].map((name, i) => {
    const shape = name.endsWith('norm.weight') ? [32] : [32, 64];
    const count = shape.reduce((a, b) => a * b, 1);
    const data = fromTyped(
      'bf16',
      shape,
      Uint16Array.from({ length: count }, (_, j) => 0x3c00 + ((j * 7 + i) % 512)),
    );
    return { name, dtype: 'BF16' as const, shape, data };
  });
  const given = Object.entries(file.header).map(([name, { shape }]) => {
    return { name, dtype: 'BF16' as const, shape, data: file.tensor(name) };
  });
  await writeSafetensors(path.join(source, 'model.safetensors'), [...given, ...prediction]);

  const canonical = path.join(dir, 'canonical');
  await rounded(runtime, source, canonical);
  const checkpoint = CanonicalCheckpoint.open(canonical);
  assert.ok(checkpoint.moduleNames().every((name) => !/conv1d|in_proj_[ab]$|^mtp/.test(name)));
  for (const target of ['gptq', 'compressed-tensors']) {
    const output = path.join(dir, target);
    await packCheckpoint({ input: checkpoint, target, output, runtime });
    const report = await verifyArtifact({ dir: output, runtime, against: canonical });
    assert.ok(report.ok, JSON.stringify(report.failures ?? report));
    const packed = new PlainFile(path.join(output, 'model.safetensors'));
    for (const { name, data } of prediction) assert.deepEqual(typed(packed.tensor(name)), typed(data), name);
    const block = 'model.language_model.layers.0.linear_attn';
    for (const name of ['A_log', 'dt_bias', 'conv1d.weight', 'in_proj_a.weight', 'in_proj_b.weight', 'norm.weight'])
      assert.deepEqual(typed(packed.tensor(`${block}.${name}`)), typed(file.tensor(`${block}.${name}`)), name);
  }
  checkpoint.close();
});

test('ranks have the linears of recurrent layers whole, and share those of attention and MLPs', () => {
  const shape = [256, 256] as const;
  const module = {
    shape,
    granularity: { kind: 'channel' },
    sparsity: 'none',
    type: 'i4',
  } as unknown as CanonicalModule;
  const split = (model_type: string, name: string) =>
    splitOf({ config: { model_type, num_attention_heads: 4 }, module: () => module }, `model.layers.0.${name}`, 2);
  for (const [type, name] of [
    ['nemotron_h', 'mixer.out_proj'],
    ['qwen3_next', 'linear_attn.out_proj'],
    ['kimi_linear', 'self_attn.v_proj'],
  ] as const)
    assert.match((split(type, name) as { whole: string }).whole, /it belongs to a recurrent layer/, type);
  assert.deepEqual(split('nemotron_h', 'mixer.o_proj'), { count: 2, split: 'k' });
  assert.deepEqual(split('qwen3_next', 'self_attn.o_proj'), { count: 2, split: 'k' });
});
