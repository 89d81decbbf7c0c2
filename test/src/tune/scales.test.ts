import assert from 'node:assert/strict';
import { readdirSync, readFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import type { Calibration } from '../../../src/calibrate/text.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { type QuantizeEvents, type QuantizeRequest, quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { SCALE_DEFAULTS } from '../../../src/tune/scales/options.js';
import { withTrainedScales } from '../../../src/tune/scales/quantizer.js';
import { scratch } from '../../formats/scratch.js';
import { lpq } from '../cli/lpq.js';
import { ARCHITECTURES } from '../model/fixtures.js';

const sequences = Array.from({ length: 120 }, (_, s) =>
  Int32Array.from({ length: 256 }, (_, i) => (i * i * 7 + s * 41 + i * s) % 64),
);
const calibration: Calibration = {
  ...{ name: 'made', sha256: '0'.repeat(64), seed: 0, length: 256, kind: 'windows', available: 120 },
  ...{ sequences: sequences.slice(0, 8), further: sequences.slice(8), tokens: 8 * 256 },
};

function request(name: string, output: string, over: Partial<QuantizeRequest> = {}): QuantizeRequest {
  return {
    source: path.join(ARCHITECTURES, name),
    output,
    scheme: schemeFromOptions({ bits: 3, groupSize: 32 }),
    rules: [],
    quantizer: withTrainedScales(gptqQuantizer(GPTQ_DEFAULTS), { ...SCALE_DEFAULTS, rate: 0.04, steps: 20, seed: 0 }),
    calibration,
    lmHead: false,
    options: {},
    version: 'test',
    ...over,
  };
}

async function run(asked: QuantizeRequest, threads = 2, events: QuantizeEvents = {}) {
  const summary = await quantizeCheckpoint([createRuntime(threads)], asked, events);
  const manifest = JSON.parse(readFileSync(path.join(asked.output, 'lpq.json'), 'utf8'));
  const shard = readdirSync(asked.output).find((file) => file.endsWith('.safetensors'));
  return { summary, manifest, bytes: readFileSync(path.join(asked.output, shard!)) };
}

test('scales change, codes do not; the kept step has the least loss; the same bytes on one thread and on two, and resumed', async () => {
  const two = await run(request('llama', path.join(scratch(), 'out')));
  const { curve, kept, steps } = two.summary.scaleTraining!;
  assert.equal(steps, 20);
  assert.deepEqual(
    curve.map(({ step }) => step),
    [0, 10, 20],
  );
  assert.ok(kept > 0);
  assert.equal(curve.find(({ step }) => step === kept)!.loss, Math.min(...curve.map(({ loss }) => loss)));
  const plain = await run(request('llama', path.join(scratch(), 'out'), { quantizer: gptqQuantizer(GPTQ_DEFAULTS) }));
  for (const [name, { sha256 }] of Object.entries<{ sha256: Record<string, string> }>(two.manifest.modules)) {
    assert.equal(sha256.codes, plain.manifest.modules[name].sha256.codes);
    assert.notEqual(sha256.scales, plain.manifest.modules[name].sha256.scales);
  }
  assert.deepEqual(two.manifest.provenance.calibration.further, { sequences: 112, tokens: 112 * 256 });
  assert.equal(two.manifest.provenance.options.tuneScalesRate, 0.04);
  const one = await run(request('llama', path.join(scratch(), 'out')), 1);
  assert.deepEqual(one.manifest, two.manifest);
  assert.ok(one.bytes.equals(two.bytes));

  const output = path.join(scratch(), 'out');
  const stop = { onModelStep: (step: number) => assert.notEqual(step, 15, 'stopped here') };
  await assert.rejects(quantizeCheckpoint([createRuntime(1)], request('llama', output), stop), /stopped here/);
  assert.deepEqual(
    readdirSync(`${output}.partial`).filter((file) => /state/.test(file)),
    ['state-10.safetensors'],
  );
  let blocks = 0;
  const took: number[] = [];
  const resumed = await run(request('llama', output, { partial: 'resume' }), 2, {
    onResume: (found) => {
      blocks = found.blocks;
    },
    onModelStep: (step) => took.push(step),
  });
  assert.equal(blocks, 2);
  assert.equal(Math.min(...took), 10);
  assert.deepEqual(resumed.summary.scaleTraining, two.summary.scaleTraining);
  assert.deepEqual(resumed.manifest, two.manifest);
  assert.ok(resumed.bytes.equals(two.bytes));
});

test('experts, layers of multi-token prediction, a quantized head, asymmetric grids, channels, bf16 scales', async () => {
  const cases: [string, Partial<QuantizeRequest>][] = [
    ['mixtral', { lmHead: true, scheme: schemeFromOptions({ bits: 4, groupSize: 'channel', scaleDtype: 'bf16' }) }],
    ['../prediction/qwen3_next', { mtp: true, scheme: schemeFromOptions({ bits: 2, groupSize: 32, asym: true }) }],
  ];
  const short = sequences.map((sequence) => sequence.slice(0, 24));
  for (const [name, over] of cases) {
    const some = { ...calibration, sequences: short.slice(0, 8), further: short.slice(8) };
    const { summary, manifest } = await run(
      request(name, path.join(scratch(), 'out'), { ...over, calibration: some }),
      2,
    );
    const { curve, kept } = summary.scaleTraining!;
    assert.ok(curve.find(({ step }) => step === kept)!.loss <= curve[0]!.loss, name);
    assert.ok(curve.every(({ loss }) => Number.isFinite(loss) && loss > 0));
    if (over.lmHead) assert.ok(manifest.modules.lm_head);
  }
});

test('norms, too: written in the place of the source’s, the same bytes on one thread and on two, and resumed', async () => {
  const options = { ...SCALE_DEFAULTS, rate: 0.04, steps: 20, seed: 0, normRate: 0.01 };
  const norms = { quantizer: withTrainedScales(gptqQuantizer(GPTQ_DEFAULTS), options), options: { tuneNorms: true } };
  const first = path.join(scratch(), 'out');
  const two = await run(request('llama', first, norms));
  const plain = await run(request('llama', path.join(scratch(), 'out'), { quantizer: gptqQuantizer(GPTQ_DEFAULTS) }));
  const names = Object.keys(two.manifest.carried);
  const changed = names.filter((name) => two.manifest.carried[name] !== plain.manifest.carried[name]);
  assert.deepEqual(
    changed,
    names.filter((name) => /norm/.test(name)),
  );
  assert.equal(two.summary.scaleTraining!.norms, changed.length);
  assert.equal(two.manifest.provenance.options.tuneNormsRate, 0.01);
  const packed = path.join(scratch(), 'packed');
  assert.equal((await lpq(['pack', first, '--target', 'tilus', '-o', packed, '--quiet'])).code, 0);
  const proof = await lpq(['verify', packed, '--against', first, '--quiet']);
  assert.equal(proof.code, 0, proof.stderr);
  const output = path.join(scratch(), 'out');
  const stop = { onModelStep: (step: number) => assert.notEqual(step, 15, 'stopped here') };
  await assert.rejects(quantizeCheckpoint([createRuntime(1)], request('llama', output, norms), stop), /stopped here/);
  const resumed = await run(request('llama', output, { ...norms, partial: 'resume' }), 1);
  assert.deepEqual(resumed.manifest, two.manifest);
  assert.ok(resumed.bytes.equals(two.bytes));
  assert.deepEqual(resumed.summary.scaleTraining, two.summary.scaleTraining);

  const from = ['--bits=3', '--group-size=32', '--tune-scales=5', `--from=${first}`];
  const again = await lpq(['quantize', path.join(ARCHITECTURES, 'llama'), '-o', path.join(scratch(), 'out'), ...from]);
  assert.match(again.stderr, /LPQ_REDO.*the norms of .* were trained with its codes/);
});

test('what --tune-scales does not go with is refused by name before anything is computed', async () => {
  const out = () => path.join(scratch(), 'out');
  const tiny = path.join(ARCHITECTURES, 'llama');
  const refused: [RegExp, string, ...string[]][] = [
    [
      /--tune-scales cannot train .*: block 0 has alternating updates/,
      path.join(ARCHITECTURES, 'gemma3n_text'),
      '--bits=4',
    ],
    [/--tune-scales has no effect on scales of 8 bits or of two levels/, tiny, '--dtype=mxfp4'],
    [/--tune-scales has no effect with --method fmpq/, tiny, '--bits=4', '--method=fmpq'],
    [/--tune-scales does not take '-1'/, tiny, '--bits=4', '--tune-scales=-1'],
    [/--tune-scales needs activations, which --stats does not have/, tiny, '--bits=4', '--stats=none'],
    [/--tune-norms has no effect without --tune-scales/, tiny, '--bits=4', '--tune-scales=0', '--tune-norms'],
    [/--tune-scales does not go with --redo/, tiny, '--bits=4', '--redo=x', '--from=y'],
    [/--tune-scales does not go with --shard/, tiny, '--bits=4', '--shard=0/2'],
    [/--tune-scales does not go with --stream/, 'org/model', '--bits=4', '--stream'],
  ];
  for (const [sentence, model, ...options] of refused) {
    const { code, stderr } = await lpq(['quantize', model, '-o', out(), '--tune-scales', '7', ...options]);
    assert.notEqual(code, 0, options.join(' '));
    assert.match(stderr, sentence);
  }
});

test('--tune-scales alone takes 300 steps, and is a field of recipes', async () => {
  const model = path.join(ARCHITECTURES, 'llama');
  const { stdout } = await lpq(['quantize', model, '-o', 'o', '--bits', '4', '--tune-scales', '--print-recipe']);
  assert.match(stdout, /^tuneScales: 300$/m);
});
