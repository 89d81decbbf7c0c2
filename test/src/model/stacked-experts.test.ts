import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import { artifactSource, openWeights } from '../../../src/artifact/open.js';
import type { Block, BlockWeights } from '../../../src/model/program.js';
import { stackExperts } from '../../../src/model/stacked-experts.js';
import { disposeWeights } from '../../../src/model/weights.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { scratch } from '../../formats/scratch.js';
import { sampled } from '../../sample.js';
import { checkpointOf, made } from '../pack/checkpoint.js';
import { counted, MIXTURES, packedMixture, states } from './packed-mixtures.js';

const rt = createRuntime(2);

for (const name of sampled('stacked experts', MIXTURES, 3))
  test(`${name}: stacked experts make what they make one by one, and nothing is read back`, async () => {
    const output = await packedMixture(name, { bits: 4, groupSize: 32, asym: name === 'mixtral' });
    const source = await openWeights(output, rt, { kernels: true });
    const [apart, together] = [counted(rt), counted(rt)];
    const want = await states(apart.runtime, source, () => {});
    let stages = 0;
    const got = await states(together.runtime, source, (block, weights) => {
      stackExperts(rt, block, weights);
      const left = [...(weights.packed?.keys() ?? [])].filter((key) => /\bexperts\.\d/.test(key));
      assert.deepEqual(left, [], `block ${block.index}`);
      stages += weights.stacked?.size ?? 0;
    });
    assert.ok(stages >= 2, `${stages} stages`);
    // The states are read.
    assert.ok(apart.reads > 1);
    assert.equal(together.reads, 1);
    assert.ok(got.every(Number.isFinite));
    // Of gate and up sums are not rounded here, but what they make of them: one by one both are, each by 2^-12 of itself in the mean.
    // What idle experts hand on goes through the f16 of products, too. Two blocks of such changes, which norms and further products pass
    // on, stay below 2^-9 of the states as a whole; an expert in another's place, or a row, changes them by about themselves.
    const length = (values: ArrayLike<number>) => Math.hypot(...Array.from(values));
    const off = length(got.map((value, i) => value - want[i]!)) / length(want);
    assert.ok(off <= 2 ** -9, `off by ${off}`);
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
