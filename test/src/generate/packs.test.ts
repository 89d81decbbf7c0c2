import assert from 'node:assert/strict';
import path from 'node:path';
import { before, test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { openSource, SourceCheckpoint } from '../../../formats/canonical/source.js';
import { createRuntime } from '../../../native/binding.js';
import { artifactSource, openWeights } from '../../../src/artifact/open.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { openCodec } from '../../../src/calibrate/tokenizer.js';
import { makeCache } from '../../../src/generate/cache.js';
import { type Generated, type GenerateOptions, generate } from '../../../src/generate/generate.js';
import { encodePrompts } from '../../../src/generate/prompts.js';
import { disposeResident, loadResident } from '../../../src/generate/resident.js';
import { GREEDY } from '../../../src/generate/sample.js';
import { openModel } from '../../../src/model/graph.js';
import type { ActivationForm, KvForm, WeightSource } from '../../../src/model/source.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { scratch } from '../../formats/scratch.js';
import { ALL } from '../../sample.js';

const MODEL = path.join(shareDirectory(), 'tiny-llama');
const TOKENS = ALL ? 200 : 60;
/** Through the kernels' operations, which are slow on the CPU. */
const KERNEL_TOKENS = ALL ? 200 : 8;
const rt = createRuntime(2);
const codec = await openCodec(MODEL);
const dir = scratch();
const quantized = path.join(dir, 'quantized');
const TARGETS = ['marlin', 'turbomind', 'tilus'];

async function texts(
  source: WeightSource & { close(): void },
  given: readonly string[],
  options: Partial<GenerateOptions> = {},
  form: KvForm | 'exact' = 'exact',
): Promise<readonly Generated[]> {
  // What kernels multiply is joined as on devices.
  const model = await loadResident(rt, source, undefined, source.packed !== undefined);
  const prompts = await encodePrompts(MODEL, codec, given, {});
  const cache = makeCache(rt, form, { blocks: model.graph.blocks.length, slots: given.length, most: 600 });
  const all = { sampling: GREEDY, maxTokens: TOKENS, stopTokens: new Set<number>(), stops: [], ...options };
  const { generated } = await generate(rt, model, cache, codec, prompts, all);
  cache.dispose();
  disposeResident(model);
  source.close();
  return generated;
}

/** W4Ax of every linear, blocks of 4 and 8 bits by turns. */
function codesOf(source: SourceCheckpoint): Map<string, ActivationForm> {
  const feeds = openModel(source).blocks.flatMap(({ stages }) => stages.flatMap((stage) => stage.feeds));
  source.close();
  return new Map(
    feeds.flatMap(({ linears }) =>
      linears.map(({ name, k }) => {
        const bits = Uint8Array.from({ length: k / 128 }, (_, b) => ((b + name.length) % 2 ? 4 : 8));
        return [name, { blocks: { bits, clip: new Float32Array(bits.length).fill(1) } }] as const;
      }),
    ),
  );
}

type Job = Parameters<typeof quantizeCheckpoint>[1];

/** The model quantized to nearest, without calibration. */
const rounded = (output: string, scheme: Parameters<typeof schemeFromOptions>[0], more: Partial<Job> = {}) =>
  quantizeCheckpoint([rt], {
    source: MODEL,
    output,
    scheme: schemeFromOptions(scheme),
    rules: [],
    quantizer: rtnQuantizer(),
    calibration: undefined,
    lmHead: false,
    options: {},
    version: 'test',
    ...more,
  });

const PROMPTS = ['Once upon a time', 'The old man looked at'];
const canonical = () => openSource(quantized, rt) as WeightSource & { close(): void };
let want: readonly Generated[];

before(async () => {
  await rounded(quantized, { bits: 4, groupSize: 128 });
  for (const target of TARGETS)
    await packCheckpoint({
      input: CanonicalCheckpoint.open(quantized),
      target,
      output: path.join(dir, target),
      runtime: rt,
    });
  want = await texts(canonical(), PROMPTS);
});

for (const target of TARGETS)
  test(`${target}: a packed model writes what the quantized one does, decoded and through its kernel`, async () => {
    const packed = path.join(dir, target);
    assert.deepEqual(await texts(artifactSource(packed, rt), PROMPTS), want);
    const kernels = artifactSource(packed, rt, true);
    assert.ok('packed' in kernels && kernels.packed('model.layers.0.mlp.up_proj.weight')?.kernel.name === target);
    // Sums of 16-bit products differ from those of decoded weights; a choice between near ties may, but did not in 200 tokens.
    const through = await texts(kernels, PROMPTS.slice(0, 1), { maxTokens: KERNEL_TOKENS });
    assert.deepEqual(through[0]?.ids, want[0]?.ids.slice(0, KERNEL_TOKENS));
  });

test('codes that stay codes: every form of a model writes the same, and what its decoded weights write', async () => {
  const form = async (of: string) => texts(await openWeights(of, rt, { coded: true }), PROMPTS);
  const found = await form(quantized);
  const source = await openWeights(quantized, rt, { coded: true });
  assert.equal((await source.packed?.('model.layers.0.mlp.up_proj.weight'))?.kernel.name, 'coded');
  source.close();
  for (const target of TARGETS) assert.deepEqual(await form(path.join(dir, target)), found, target);
  // Scales multiply sums instead of weights: a choice between near ties may differ, but does not in these.
  assert.deepEqual(found, want);
});

test('comet: a model whose activations are codes writes the same, decoded and through its kernel, over the cache that it asks for', async () => {
  const [from, to] = [path.join(dir, 'fmpq'), path.join(dir, 'comet')];
  await rounded(
    from,
    { bits: 4, groupSize: 128 },
    { activations: codesOf(SourceCheckpoint.open(MODEL)), kv: { bits: 4, group: 64 } },
  );
  await packCheckpoint({ input: CanonicalCheckpoint.open(from), target: 'comet', output: to, runtime: rt });
  const options = { maxTokens: KERNEL_TOKENS };
  const source = openSource(from, rt) as WeightSource & { close(): void };
  const want = await texts(source, PROMPTS, options, source.kv);
  // Integers of one sum, scaled in one order: the same bits, hence the same tokens.
  for (const kernels of [false, true]) {
    const artifact = artifactSource(to, rt, kernels, kernels);
    assert.ok('packed' in artifact);
    assert.deepEqual(artifact.kv, { bits: 4, group: 64 });
    const layout = artifact.packed('model.layers.0.mlp.down_proj.weight')?.kernel.name;
    assert.equal(layout, kernels ? 'comet' : undefined);
    assert.deepEqual(await texts(artifact, PROMPTS, options, artifact.kv), want);
  }
});

test('w8a8: a model of bytes writes through its kernel what its decoded weights write', async () => {
  for (const type of ['i8', 'f8e4m3'] as const) {
    const [from, to] = [path.join(dir, type), path.join(dir, `w8a8-${type}`)];
    await rounded(from, { dtype: type, groupSize: 'channel' });
    const input = CanonicalCheckpoint.open(from);
    await packCheckpoint({ input, target: 'compressed-tensors-w8a8', output: to, runtime: rt });
    // Activations rounded to bytes may turn a choice between near ties, but do not in these.
    const options = { maxTokens: 8 };
    const [want] = await texts(artifactSource(to, rt), PROMPTS.slice(0, 1), options);
    const kernels = artifactSource(to, rt, true, true);
    assert.ok('packed' in kernels && kernels.packed('model.layers.0.mlp.up_proj.weight')?.kernel.name === 'w8a8');
    const [through] = await texts(kernels, PROMPTS.slice(0, 1), options);
    assert.deepEqual(through?.ids, want?.ids);
  }
});

test('w4a8: a two-level grid writes through its kernel what its decoded weights write', async () => {
  const [from, to] = [path.join(dir, 'two-level'), path.join(dir, 'w4a8')];
  await rounded(from, { bits: 4, groupSize: 128, groupScales: 'integer' });
  await packCheckpoint({ input: CanonicalCheckpoint.open(from), target: 'w4a8', output: to, runtime: rt });
  // Activations rounded to bytes may turn a choice between near ties, but do not in these.
  const options = { maxTokens: 8 };
  const [want] = await texts(artifactSource(to, rt), PROMPTS.slice(0, 1), options);
  const kernels = artifactSource(to, rt, true, true);
  assert.ok('packed' in kernels && kernels.packed('model.layers.0.mlp.up_proj.weight')?.kernel.name === 'w4a8');
  const [through] = await texts(kernels, PROMPTS.slice(0, 1), options);
  assert.deepEqual(through?.ids, want?.ids);
});

test('a sequence becomes the same beside others, after a long prompt too, greedy and drawn', async () => {
  const long = 'It was the best of times, it was the worst of times. '.repeat(12);
  for (const sampling of [GREEDY, { temperature: 0.9, topK: 40, topP: 0.95, seed: 5 }]) {
    const together = await texts(canonical(), [PROMPTS[0]!, long, PROMPTS[1]!], { sampling, maxTokens: 24 });
    const [alone] = await texts(canonical(), [PROMPTS[0]!], { sampling, maxTokens: 24 });
    assert.deepEqual(together[0], alone);
    assert.equal(together[1]?.ids.length, 24);
  }
});

test('stop tokens, stop strings and enough tokens end a text', async () => {
  const [free] = want as [Generated, Generated];
  assert.equal(free.finish, 'length');
  assert.equal((await codec.decode([...free.ids])).trim(), free.text.trim());
  const stop = free.text.slice(20, 26);
  const at = free.text.indexOf(stop);
  const [stopped] = await texts(canonical(), [PROMPTS[0]!], { stops: ['never there', stop] });
  assert.deepEqual([stopped?.finish, stopped?.stop, stopped?.text], ['stop', stop, free.text.slice(0, at)]);
  const end = free.ids[10]!;
  const [ended] = await texts(canonical(), [PROMPTS[0]!], { stopTokens: new Set([end]) });
  assert.equal(ended?.finish, 'eos');
  assert.deepEqual(ended?.ids, free.ids.slice(0, free.ids.indexOf(end) + 1));
});
