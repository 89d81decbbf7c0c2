import assert from 'node:assert/strict';
import {
  cpSync,
  existsSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { type TestContext, test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { Checkpoint } from '../../../formats/safetensors/checkpoint.js';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { createRuntime } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import type { Calibration } from '../../../src/calibrate/text.js';
import { LpqError } from '../../../src/core/error.js';
import { GPTQ_DEFAULTS } from '../../../src/gptq/options.js';
import { gptqQuantizer } from '../../../src/gptq/quantizer.js';
import { type QuantizeRequest, quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { ARCHITECTURES } from '../model/fixtures.js';

const rt = createRuntime(2);
const tiny = path.join(shareDirectory(), 'tiny-llama');

function scratch(t: TestContext): string {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-run-'));
  t.after(() => rmSync(dir, { recursive: true, force: true }));
  return dir;
}

/** Pseudo-random tokens: these tests look at the machinery, not at quality. */
function tokens(sequences: number, length: number, vocab: number): Calibration {
  let state = 7;
  const next = () => {
    state = (Math.imul(state, 1103515245) + 12345) >>> 0;
    return (state >>> 8) % vocab;
  };
  const list = Array.from({ length: sequences }, () => Int32Array.from({ length }, next));
  return {
    name: 'made',
    sha256: '0'.repeat(64),
    seed: 0,
    length,
    kind: 'windows',
    sequences: list,
    tokens: sequences * length,
    available: sequences,
  };
}

function request(source: string, output: string, more: Partial<QuantizeRequest> = {}): QuantizeRequest {
  return {
    source,
    output,
    scheme: schemeFromOptions({ bits: 4, groupSize: 64 }),
    rules: [],
    quantizer: gptqQuantizer(GPTQ_DEFAULTS),
    calibration: tokens(3, 100, 2048),
    lmHead: false,
    options: {},
    version: 'test',
    ...more,
  };
}

test('rules decide module by module, the first match wins, and the rest is carried', async (t) => {
  const output = path.join(scratch(t), 'out');
  const lines: string[] = [];
  const summary = await quantizeCheckpoint(
    [rt],
    request(tiny, output, {
      rules: [
        { match: /layers\.3\./, scheme: 'skip' },
        { match: /down_proj/, scheme: schemeFromOptions({ dtype: 'f6e3m2', groupSize: 32 }) },
        { match: /mlp/, scheme: schemeFromOptions({ bits: 3, asym: true, groupSize: 'channel' }) },
      ],
    }),
    { onModule: ({ name, scheme }) => lines.push(`${name.replace('model.layers.', '')} ${scheme}`) },
  );
  assert.equal(summary.modules.length, 21);
  assert.deepEqual(lines.slice(0, 7), [
    '0.self_attn.q_proj i4 g64',
    '0.self_attn.k_proj i4 g64',
    '0.self_attn.v_proj i4 g64',
    '0.self_attn.o_proj i4 g64',
    '0.mlp.gate_proj u3 asym channel',
    '0.mlp.up_proj u3 asym channel',
    '0.mlp.down_proj f6e3m2 g32',
  ]);
  const checkpoint = CanonicalCheckpoint.open(output);
  assert.deepEqual(await checkpoint.verifyHashes(), []);
  assert.ok(Object.hasOwn(checkpoint.manifest.carried, 'model.layers.3.mlp.down_proj.weight'));
  assert.ok(checkpoint.module('model.layers.0.mlp.gate_proj').quality!.relativeError! > 0);
  checkpoint.close();
});

test('experts that few tokens reach fall back and are reported; the rest have errors', async (t) => {
  const source = path.join(ARCHITECTURES, 'qwen3_moe');
  const output = path.join(scratch(t), 'out');
  const scheme = schemeFromOptions({ bits: 4, groupSize: 32 });
  const summary = await quantizeCheckpoint([rt], request(source, output, { scheme, calibration: tokens(1, 10, 64) }));
  const experts = summary.modules.filter(({ name }) => name.includes('experts'));
  assert.equal(experts.length, 2 * 4 * 3);
  const routed = experts.filter(({ name }) => name.endsWith('gate_proj') && name.includes('layers.0.'));
  assert.equal(
    routed.reduce((sum, line) => sum + (line.tokens ?? 0), 0),
    10 * 2,
  );
  for (const line of experts) {
    assert.equal(line.method, (line.tokens ?? 0) < 4 ? 'rtn' : 'gptq', `${line.name}: ${line.tokens}`);
    if (line.method === 'rtn') assert.match(line.note ?? '', /only \d+ calibration rows/);
  }
  assert.ok(experts.some(({ method }) => method === 'rtn') && experts.some(({ method }) => method === 'gptq'));
});

test('an untied lm_head is quantized when asked for', async (t) => {
  const source = path.join(ARCHITECTURES, 'llama-yarn-bias');
  const dir = scratch(t);
  for (const quantizer of [gptqQuantizer(GPTQ_DEFAULTS), rtnQuantizer()]) {
    const scheme = schemeFromOptions({ bits: 8, groupSize: 16 });
    const output = path.join(dir, quantizer.method);
    const summary = await quantizeCheckpoint(
      [rt],
      request(source, output, { scheme, quantizer, lmHead: true, calibration: tokens(2, 60, 64) }),
    );
    assert.equal(summary.modules.at(-1)?.name, 'lm_head');
    assert.ok(existsSync(path.join(output, 'lpq.json')));
  }
  await assert.rejects(quantizeCheckpoint([rt], request(tiny, path.join(dir, 'tied'), { lmHead: true })), {
    code: 'LPQ_USAGE',
  });
});

/** A copy of the tiny model that `damage` may harm. */
function copy(dir: string, damage: (model: string) => unknown): string {
  const model = path.join(dir, 'model');
  cpSync(tiny, model, { recursive: true });
  damage(model);
  return model;
}

function editConfig(model: string, change: Record<string, unknown>): void {
  const file = path.join(model, 'config.json');
  writeFileSync(file, JSON.stringify({ ...JSON.parse(readFileSync(file, 'utf8')), ...change }));
}

/** The model's weights again, without one tensor or with one value changed. */
async function rewrite(
  model: string,
  name: string,
  edit: (bytes: Uint8Array) => Uint8Array | undefined,
): Promise<void> {
  const checkpoint = Checkpoint.open(model);
  const tensors = [...checkpoint.names()].flatMap((each) => {
    const data = checkpoint.tensor(each).bytes().slice();
    const edited = each === name ? edit(data) : data;
    return edited ? [{ ...checkpoint.spec(each), data: edited }] : [];
  });
  checkpoint.close();
  rmSync(path.join(model, 'model.safetensors'));
  await writeSafetensors(path.join(model, 'model.safetensors'), tensors);
}

const V = 'model.layers.2.self_attn.v_proj.weight';
const DAMAGES: [string, (model: string) => unknown, string, RegExp][] = [
  [
    'a truncated shard',
    (m) => truncateSync(path.join(m, 'model.safetensors'), 5_000_000),
    'LPQ_SAFETENSORS',
    /model\.safetensors/,
  ],
  ['a missing tensor', (m) => rewrite(m, V, () => undefined), 'LPQ_TENSOR_MISSING', /layers\.2\.self_attn\.v_proj/],
  [
    'an unknown architecture',
    (m) => editConfig(m, { architectures: ['NewForCausalLM'], model_type: 'new' }),
    'LPQ_ARCH_UNKNOWN',
    /config\.json/,
  ],
  ['a config of another size', (m) => editConfig(m, { intermediate_size: 512 }), 'LPQ_TENSOR_SHAPE', /mlp/],
  [
    'NaN in a weight',
    (m) =>
      rewrite(m, V, (bytes) => {
        bytes.set([0xc0, 0x7f], 200);
        return bytes;
      }),
    'LPQ_MODULE_NUMERICS',
    /layers\.2\.self_attn/,
  ],
];

for (const [what, damage, code, names] of DAMAGES)
  for (const method of ['gptq', 'rtn'] as const)
    test(`${what} ends ${method} with ${code} and no output, but for finished blocks`, async (t) => {
      const dir = scratch(t);
      const model = copy(dir, () => {});
      await damage(model);
      const quantizer = method === 'rtn' ? rtnQuantizer() : gptqQuantizer(GPTQ_DEFAULTS);
      await assert.rejects(quantizeCheckpoint([rt], request(model, path.join(dir, 'out'), { quantizer })), (error) => {
        assert.ok(error instanceof LpqError, String(error));
        assert.equal(error.code, code, error.message);
        assert.match(error.message, names);
        return true;
      });
      // NaN is met in block 2; everything else before any work.
      assert.deepEqual(readdirSync(dir), code === 'LPQ_MODULE_NUMERICS' ? ['model', 'out.partial'] : ['model']);
    });

test('groups that do not divide K are refused before any work', async (t) => {
  const dir = scratch(t);
  await assert.rejects(
    quantizeCheckpoint(
      [rt],
      request(tiny, path.join(dir, 'out'), { scheme: schemeFromOptions({ bits: 4, groupSize: 96 }) }),
    ),
    {
      code: 'LPQ_GROUP_SIZE',
      message: /96 do not divide the 256 input features of model\.layers\.0\.self_attn\.q_proj/,
    },
  );
  assert.deepEqual(readdirSync(dir), []);
});
