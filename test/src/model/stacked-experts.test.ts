import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { CanonicalCheckpoint } from '../../../formats/canonical/read.js';
import { createRuntime, type NativeRuntime, readTyped } from '../../../native/binding.js';
import { artifactSource, openWeights } from '../../../src/artifact/open.js';
import { makeBatch } from '../../../src/model/batch.js';
import { disposeStates, embedBatches, loadOuter, runBlock } from '../../../src/model/forward.js';
import { openModel } from '../../../src/model/graph.js';
import type { Block, BlockWeights } from '../../../src/model/program.js';
import type { WeightSource } from '../../../src/model/source.js';
import { stackExperts } from '../../../src/model/stacked-experts.js';
import { disposeWeights, loadWeights } from '../../../src/model/weights.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { quantizeCheckpoint } from '../../../src/quantize/run.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../../src/rtn/quantizer.js';
import { scratch } from '../../formats/scratch.js';
import { sampled } from '../../sample.js';
import { checkpointOf, made } from '../pack/checkpoint.js';
import { ARCHITECTURES } from './fixtures.js';

const rt = createRuntime(2);
const TOKENS = 24;

/** Gates of every kind, biases, weighed inputs, a latent vector, experts that are idle, experts apart from an MLP. */
const MIXTURES = [
  'mixtral',
  'gpt_oss',
  'llama4_text',
  'nemotron_h-latent',
  'longcat_flash',
  'gemma4_moe',
  'deepseek_v4',
  'minimax_m3_vl_text',
];

const IDLE = new Set(['longcat_flash']);

async function packed(name: string, scheme: Parameters<typeof schemeFromOptions>[0]): Promise<string> {
  const dir = scratch();
  const [quantized, output] = [path.join(dir, 'q'), path.join(dir, 'p')];
  await quantizeCheckpoint([rt], {
    source: path.join(ARCHITECTURES, name),
    output: quantized,
    scheme: schemeFromOptions(scheme),
    rules: [],
    quantizer: rtnQuantizer(),
    calibration: undefined,
    lmHead: false,
    options: {},
    version: 'test',
  });
  await packCheckpoint({ input: CanonicalCheckpoint.open(quantized), target: 'tilus', output, runtime: rt });
  return output;
}

/** The runtime, which counts what is read back to the host. */
function counted(): { readonly runtime: NativeRuntime; reads: number } {
  const counter = {
    reads: 0,
    runtime: new Proxy(rt, {
      get(target, name) {
        if (name === 'download') counter.reads++;
        const value: unknown = Reflect.get(target, name, target);
        return typeof value === 'function' ? value.bind(target) : value;
      },
    }),
  };
  return counter;
}

/** States after the last block; `each`: what becomes of a block's weights first. */
async function states(
  runtime: NativeRuntime,
  source: WeightSource,
  each: (block: Parameters<typeof stackExperts>[1], weights: BlockWeights) => void,
): Promise<Float32Array> {
  const graph = openModel(source);
  const outer = await loadOuter(runtime, source, graph);
  const ids = Int32Array.from({ length: TOKENS }, (_, i) => (i * 37 + 5) % graph.vocab);
  const batch = makeBatch(runtime, [ids.slice(0, 10), ids.slice(10)]);
  let [state] = embedBatches(runtime, graph, outer, [batch]);
  for (const block of graph.blocks.filter(({ predicts }) => !predicts)) {
    const weights = await loadWeights(runtime, source, block.tensors.keys(), graph.transposed);
    each(block, weights);
    state = await runBlock(runtime, block, weights, state!);
    disposeWeights(weights);
  }
  const values = (await readTyped<Float32Array>(rt, state!.h)).slice();
  disposeStates([state!]);
  disposeWeights(outer);
  return values;
}

for (const name of sampled('stacked experts', MIXTURES, 3))
  test(`${name}: stacked experts make what they make one by one, and nothing is read back`, async () => {
    const output = await packed(name, { bits: 4, groupSize: 32, asym: name === 'mixtral' });
    const source = await openWeights(output, rt, { kernels: true });
    const [apart, together] = [counted(), counted()];
    const want = await states(apart.runtime, source, () => {});
    let stages = 0;
    const got = await states(together.runtime, source, (block, weights) => {
      stackExperts(rt, block, weights);
      const left = [...(weights.packed?.keys() ?? [])].filter((key) => /\bexperts\.\d/.test(key));
      assert.deepEqual(left, [], `block ${block.index}`);
      stages += weights.stacked?.size ?? 0;
    });
    assert.ok(stages >= 2, `${stages} stages`);
    assert.ok(apart.reads > 0);
    assert.equal(together.reads, 0);
    assert.ok(got.every(Number.isFinite));
    // What idle experts hand on goes through the f16 of products here, a rounding of 2^-11 of itself in each of two blocks, after
    // which norms and further products of the same size add no more than as much again.
    const bound = IDLE.has(name) ? 2 ** -9 : 0;
    got.forEach((value, i) => {
      assert.ok(Math.abs(value - want[i]!) <= bound * (1 + Math.abs(want[i]!)), `${i}: ${value} and ${want[i]}`);
    });
    source.close();
  });

test('experts that are not alike, or whose kernel takes one at a time, stay apart', async () => {
  const dir = scratch();
  const [A, B] = ['model.layers.0.self_attn.q_proj', 'model.layers.0.self_attn.k_proj'];
  const form = { type: 'i4', n: 256, k: 256, group: 128 } as const;
  for (const [i, [target, a, b, stacks]] of (
    [
      ['tilus', made(form), made({ ...form, seed: 9 }), true],
      ['tilus', made(form), made({ ...form, type: 'i3' }), false],
      ['tilus', made(form), made({ ...form, group: 64 }), false],
      ['tilus', made(form), made({ ...form, n: 128 }), false],
      ['marlin', made(form), made(form), false],
    ] as const
  ).entries()) {
    const input = await checkpointOf(dir, `canonical-${i}`, { [A]: a, [B]: b });
    const output = path.join(dir, `packed-${i}`);
    await packCheckpoint({ input, target, output, runtime: rt });
    const source = artifactSource(output, rt, true);
    assert.ok('packed' in source);
    const weights: BlockWeights = new Map();
    weights.packed = new Map([A, B].map((name) => [`${name}.weight`, source.packed(`${name}.weight`)!]));
    const before = new Map(weights.packed);
    const feeds = [A, B].map((name, expert) => ({
      id: `experts.${expert}.down`,
      linears: [{ name, n: 256, k: 256, expert }],
    }));
    stackExperts(
      rt,
      { index: 0, tensors: new Map(), stages: [{ id: 'experts.down', feeds }] } as unknown as Block,
      weights,
    );
    if (stacks) {
      assert.deepEqual([weights.packed.size, weights.stacked?.get('experts.down')?.packed.shape], [0, [256, 256]]);
    } else {
      assert.equal(weights.stacked, undefined, `${i}`);
      assert.deepEqual(weights.packed, before);
    }
    disposeWeights(weights);
    source.close();
  }
});
