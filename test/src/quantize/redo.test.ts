import assert from 'node:assert/strict';
import { cpSync, existsSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { after, test } from 'node:test';
import type { CanonicalManifest } from '../../../formats/canonical/schema.js';
import { createRuntime } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import type { Calibration } from '../../../src/calibrate/text.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { allButRedone } from '../../../src/quantize/redo-rule.js';
import { type QuantizeRequest, quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { designed } from '../../formats/scratch.js';

const rt = createRuntime(2);
const tiny = path.join(shareDirectory(), 'tiny-llama');
const dir = mkdtempSync(path.join(tmpdir(), 'lpq-redo-'));
after(() => rmSync(dir, { recursive: true, force: true }));
const at = (name: string) => path.join(dir, name);

const sequences = [0, 1].map((s) => Int32Array.from({ length: 32 }, (_, i) => (s * 977 + i * i * 31 + 7 * i) % 512));
const facts = { name: 'made', sha256: '0'.repeat(64), seed: 0, kind: 'windows', available: 2 } as const;
const calibration: Calibration = { ...facts, length: 32, sequences, tokens: 64 };

const base: Omit<QuantizeRequest, 'output'> = {
  source: tiny,
  scheme: schemeFromOptions({ bits: 4 }),
  rules: [],
  quantizer: gptqQuantizer({ ...GPTQ_DEFAULTS, clipSteps: 2, rounds: 1 }),
  calibration,
  lmHead: false,
  options: {},
  version: '0',
};
const redo = (match: RegExp, from: string, rules: QuantizeRequest['rules'] = []) => ({
  redo: { match, from: at(from) },
  rules: [{ match: allButRedone(match), scheme: 'skip' as const }, ...rules],
});
const manifest = (name: string) =>
  JSON.parse(readFileSync(path.join(at(name), 'lpq.json'), 'utf8')) as CanonicalManifest;
const weights = (name: string) => readFileSync(path.join(at(name), 'model.safetensors'));

await quantizeCheckpoint([rt], { ...base, output: at('first') });
const first = manifest('first');

test('redone as they were, modules get the bytes they had, whichever are chosen', async () => {
  for (const [i, match] of [/layers\.1\./, /v_proj|down_proj/, /layers\.3\.mlp\.up/, /proj/].entries()) {
    const output = at(`again-${i}`);
    const summary = await quantizeCheckpoint([rt], { ...base, ...redo(match, 'first'), output });
    const { modules, carried, provenance } = manifest(`again-${i}`);
    assert.deepEqual(modules, first.modules);
    assert.deepEqual(carried, first.carried);
    assert.match(String(provenance.options.from), /^[0-9a-f]{64}$/);
    assert.ok(weights(`again-${i}`).equals(weights('first')));
    assert.equal(summary.modules.length, 28);
    assert.equal(summary.bitsPerWeight, 4.125);
  }
});

test('with other options they are those of a run with a rule for them, and the rest is kept byte for byte', async () => {
  const three = schemeFromOptions({ bits: 3, groupSize: 64 });
  const match = /layers\.[23]\./;
  await quantizeCheckpoint([rt], { ...base, ...redo(match, 'first'), scheme: three, output: at('third') });
  await quantizeCheckpoint([rt], { ...base, rules: [{ match, scheme: three }], output: at('ruled') });
  assert.ok(weights('third').equals(weights('ruled')));
  assert.deepEqual(manifest('third').modules, manifest('ruled').modules);
  // Blocks behind what is redone keep the codes made for what was before.
  const rounded = { ...base, quantizer: rtnQuantizer(), calibration: undefined };
  await quantizeCheckpoint([rt], { ...rounded, ...redo(/layers\.0\..*o_proj/, 'first'), output: at('one') });
  for (const [name, module] of Object.entries(manifest('one').modules)) {
    const same = module.sha256.codes === first.modules[name]?.sha256.codes;
    assert.equal(same, !name.endsWith('layers.0.self_attn.o_proj'), name);
    assert.equal(module.quality?.method, same ? first.modules[name]?.quality?.method : 'rtn');
  }
  // A rule may leave a module that matches unquantized.
  const plain = [{ match: /gate_proj/, scheme: 'skip' as const }];
  await quantizeCheckpoint([rt], { ...rounded, ...redo(/layers\.0\.mlp/, 'first', plain), output: at('plain') });
  assert.ok(!Object.hasOwn(manifest('plain').modules, 'model.layers.0.mlp.gate_proj'));
  assert.ok(Object.hasOwn(manifest('plain').carried, 'model.layers.0.mlp.gate_proj.weight'));
});

test('a stopped run goes on with the bytes of an undisturbed one', async () => {
  const request = {
    ...base,
    ...redo(/layers\.[123]\..*(q_proj|up_proj)/, 'first'),
    scheme: schemeFromOptions({ bits: 3 }),
  };
  await quantizeCheckpoint([rt], { ...request, output: at('whole') });
  let stages = 0;
  const stop = { onStage: () => assert.ok(stages++ < 7, 'stopped here') };
  await assert.rejects(quantizeCheckpoint([rt], { ...request, output: at('stopped') }, stop), /stopped here/);
  assert.ok(existsSync(`${at('stopped')}.partial`) && !existsSync(at('stopped')));
  let blocks = 0;
  const resumed = {
    onResume: (found: { blocks: number }) => {
      blocks = found.blocks;
    },
  };
  // What is kept is an option like the others.
  const other = {
    ...request,
    redo: { ...request.redo, from: at('third') },
    output: at('stopped'),
    partial: 'resume' as const,
  };
  await assert.rejects(quantizeCheckpoint([rt], other), designed('LPQ_RESUME', '--from'));
  await quantizeCheckpoint([rt], { ...request, output: at('stopped'), partial: 'resume' }, resumed);
  assert.ok(blocks >= 1 && blocks < 3, `${blocks} blocks`);
  assert.ok(weights('stopped').equals(weights('whole')));
  assert.deepEqual(manifest('stopped'), manifest('whole'));
});

test('refused: nothing that matches, another model, a damaged module, one that stands on others', async () => {
  const run = (more: Partial<QuantizeRequest>) => quantizeCheckpoint([rt], { ...base, ...more, output: at('refused') });
  await assert.rejects(run(redo(/nowhere/, 'first')), designed('LPQ_REDO', 'nowhere'));
  const change = (name: string, edit: (value: CanonicalManifest) => void) => {
    cpSync(at('first'), at(name), { recursive: true });
    const value = manifest(name);
    edit(value);
    writeFileSync(path.join(at(name), 'lpq.json'), JSON.stringify(value));
  };
  change('foreign', ({ provenance }) => Object.assign(provenance.source, { fingerprint: '1'.repeat(64) }));
  await assert.rejects(run(redo(/mlp/, 'foreign')), designed('LPQ_REDO', 'another model'));
  change('damaged', ({ modules }) => {
    const module = modules['model.layers.0.self_attn.q_proj'];
    if (module) module.sha256.codes = '2'.repeat(64);
  });
  await assert.rejects(run(redo(/mlp/, 'damaged')), designed('LPQ_CANONICAL', 'layers.0.self_attn.q_proj.codes'));
  change('mixed', ({ modules }) => {
    const module = modules['model.layers.0.self_attn.q_proj'];
    if (module) module.activations = { block: 128, bits: [4, 8], clip: [1, 1] };
  });
  await assert.rejects(run(redo(/mlp/, 'mixed')), designed('LPQ_REDO', 'depends on other modules'));
  assert.ok(!existsSync(at('refused')));
});
