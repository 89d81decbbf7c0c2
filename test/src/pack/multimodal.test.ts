import assert from 'node:assert/strict';
import { cpSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { createRuntime } from '../../../native/binding.js';
import { architectureOf } from '../../../src/model/architectures/index.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { verifyArtifact } from '../../../src/verify/verify.js';
import { scratch } from '../../formats/scratch.js';
import { ARCHITECTURES, GOLDENS, PlainFile } from '../model/fixtures.js';
import { rounded } from './rounded.js';

const runtime = createRuntime(2);
const configAt = (dir: string) => JSON.parse(readFileSync(path.join(dir, 'config.json'), 'utf8'));
const NESTED = GOLDENS.filter((name) => architectureOf(configAt(path.join(ARCHITECTURES, name)), name).text);

/** Prefixes in the checkpoint, and what transformers 5 and vLLM make of them when they load it. */
const RENAMES: readonly (readonly [string, readonly string[]])[] = [
  ['language_model.model.', ['model.language_model.']],
  ['model.language_model.', ['language_model.model.']],
  ['model.visual.', ['visual.']],
  ['model.vision_tower.', ['vision_tower.']],
  ['model.embed_vision.', ['embed_vision.']],
  ['visual.', ['model.visual.']],
  ['vision_tower.', ['model.vision_tower.']],
  ['multi_modal_projector.', ['model.multi_modal_projector.']],
  ['mm_projector.', ['model.mm_projector.']],
  ['model.', ['model.language_model.', 'language_model.model.']],
];

function spellings(name: string): string[] {
  const [prefix, others] = RENAMES.find(([start]) => name.startsWith(start)) ?? ['', []];
  return [name, ...others.map((each) => each + name.slice(prefix.length))];
}

for (const arch of NESTED)
  test(`${arch}: towers are carried bit by bit, and no reader takes them for quantized`, async () => {
    const source = path.join(ARCHITECTURES, arch);
    const from = path.join(scratch(), 'source');
    cpSync(source, from, { recursive: true });
    for (const file of ['preprocessor_config.json', 'processor_config.json', 'chat_template.jinja'])
      writeFileSync(path.join(from, file), file.endsWith('json') ? '{"size":4}' : '{{ messages }}');
    const output = path.join(scratch(), 'quantized');
    // A second scheme, so that groups name their modules.
    const rules = [{ match: /o_proj/, scheme: schemeFromOptions({ bits: 8, groupSize: 32 }) }];
    await rounded(runtime, from, output, rules);
    const input = CanonicalCheckpoint.open(output);
    const modules = input.moduleNames();
    const original = new PlainFile(path.join(source, 'model.safetensors'));
    const beside = Object.keys(original.header).filter((name) => /vision|visual|projector/.test(name));
    assert.ok(
      beside.length > 5 && modules.every((name) => /layers\.\d/.test(name) && !beside.includes(`${name}.weight`)),
    );
    const { experts } = architectureOf(configAt(source), source);
    // Readers that go by names have none for experts in one tensor: lpq's own targets take those.
    const byName = experts?.fused === undefined || experts.named;
    for (const target of byName ? ['compressed-tensors', 'gptq'] : ['tilus']) {
      const dir = path.join(scratch(), target);
      await packCheckpoint({ input, target, output: dir, runtime });
      const report = await verifyArtifact({ dir, against: output, runtime });
      assert.ok(report.ok, JSON.stringify(report.failures));
      const packed = new PlainFile(path.join(dir, 'model.safetensors'));
      for (const name of beside) {
        assert.deepEqual(
          [packed.header[name]?.dtype, packed.header[name]?.shape],
          [original.header[name]?.dtype, original.header[name]?.shape],
        );
        assert.deepEqual(packed.tensor(name).bytes(), original.tensor(name).bytes(), name);
      }
      for (const file of ['preprocessor_config.json', 'processor_config.json', 'chat_template.jinja'])
        assert.equal(readFileSync(path.join(dir, file), 'utf8'), readFileSync(path.join(from, file), 'utf8'));
      const config = configAt(dir);
      const { quantization_config: told, ...rest } = config;
      assert.deepEqual(rest, configAt(source), 'text_config and vision_config stay');
      if (!byName) continue;
      const plain: RegExp[] =
        target === 'gptq'
          ? Object.keys(told.dynamic)
              .filter((rule) => rule.startsWith('-:'))
              .map((rule) => new RegExp(rule.slice(2)))
          : told.ignore.map((item: string) => (item.startsWith('re:') ? new RegExp(item.slice(3)) : /^$/));
      const eight: RegExp[] =
        target === 'gptq'
          ? Object.keys(told.dynamic)
              .filter((rule) => rule.startsWith('+:'))
              .map((rule) => new RegExp(rule.slice(2)))
          : (Object.values(told.config_groups) as { weights: { num_bits: number }; targets: string[] }[])
              .filter(({ weights }) => weights.num_bits === 8)
              .flatMap(({ targets }) => targets.map((item) => new RegExp(item.slice('re:'.length))));
      const matches = (list: readonly RegExp[], name: string) => list.some((pattern) => pattern.test(name));
      for (const name of beside.filter((each) => each.endsWith('.weight') && original.header[each]?.shape.length === 2))
        for (const each of spellings(name.slice(0, -'.weight'.length)))
          assert.ok(matches(plain, each), `${target} leaves ${each} alone`);
      for (const name of modules)
        for (const each of spellings(name)) {
          assert.ok(!matches(plain, each), `${target} quantizes ${each}`);
          // A mixture's main scheme is that of its experts: 4 bits everywhere but in o.
          assert.equal(matches(eight, each), /o_proj$/.test(each), `${target} has ${each} in the right group`);
        }
    }
    input.close();
  });

for (const arch of NESTED) {
  const { experts } = architectureOf(configAt(path.join(ARCHITECTURES, arch)), arch);
  if (experts?.fused !== undefined && !experts.named) continue;
  test(`${arch}: AWQ, whose lists are parts of names, leaves towers alone and names no table`, async () => {
    const source = path.join(ARCHITECTURES, arch);
    const [canonical, dir] = [path.join(scratch(), 'canonical'), path.join(scratch(), 'awq')];
    await rounded(runtime, source, canonical);
    const input = CanonicalCheckpoint.open(canonical);
    await packCheckpoint({ input, target: 'awq', output: dir, runtime });
    const report = await verifyArtifact({ dir, against: canonical, runtime });
    assert.ok(report.ok, JSON.stringify(report.failures));
    const left: string[] = configAt(dir).quantization_config.modules_to_not_convert;
    const { header } = new PlainFile(path.join(source, 'model.safetensors'));
    const towers = Object.keys(header).filter(
      (name) => /vision|visual|projector/.test(name) && name.endsWith('.weight'),
    );
    for (const name of towers.filter((each) => header[each]?.shape.length === 2 && !/embed/.test(each)))
      assert.ok(
        left.some((part) => name.includes(part)),
        name,
      );
    for (const name of input.moduleNames()) assert.ok(!left.some((part) => name.includes(part)), name);
    input.close();
  });
}
