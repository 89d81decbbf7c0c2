import assert from 'node:assert/strict';
import { createRuntime } from '../../native/binding.js';
import { openWeights } from '../../src/artifact/open.js';
import { stackExperts } from '../../src/model/stacked-experts.js';
import { counted, MIXTURES, packedMixture, states, TOKENS } from '../src/model/packed-mixtures.js';
import { gpuTest } from './gpu.js';

for (const name of MIXTURES)
  gpuTest(`${name}: experts in one launch make what they make one by one, and nothing is read back`, async () => {
    const rt = createRuntime({ device: 'cuda:0', activationDtype: 'f16' });
    const source = await openWeights(await packedMixture(name, { bits: 4, groupSize: 32 }), rt);
    const [apart, together] = [counted(rt), counted(rt)];
    const want = await states(apart.runtime, source, () => {});
    // The states are read.
    const read = apart.reads;
    assert.ok(read > 1, `${read}`);
    const got = await states(together.runtime, source, (block, weights) => stackExperts(rt, block, weights));
    assert.equal(together.reads, 1);
    source.close();
    const width = want.length / TOKENS;
    const errors = Array.from({ length: TOKENS }, (_, t) => {
      const norm = (of: (i: number) => number) =>
        Math.sqrt(Array.from({ length: width }, (_, c) => of(t * width + c) ** 2).reduce((a, b) => a + b, 0));
      return norm((i) => got[i]! - want[i]!) / norm((i) => want[i]!);
    }).sort((a, b) => a - b);
    // Both multiply codes exactly and round products to f16, sums in another order: 2^-11 of a product now and then, in some ten products
    // one behind the other. Where two experts' logits are as close as that, a token may go to the other one: few do.
    assert.ok(errors.every(Number.isFinite));
    assert.ok(errors[TOKENS / 2]! < 2e-3, `the median token is off by ${errors[TOKENS / 2]}`);
    assert.ok(errors[Math.floor(TOKENS * 0.8)]! < 2e-2, `${errors}`);
  });
