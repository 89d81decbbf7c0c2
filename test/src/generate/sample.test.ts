import assert from 'node:assert/strict';
import { test } from 'node:test';
import { checkSampling, GREEDY, Sampler, type Sampling } from '../../../src/generate/sample.js';
import { designed } from '../../formats/scratch.js';

const drawn = (logits: readonly number[], sampling: Partial<Sampling>, count: number, number = 0): number[] => {
  const sampler = new Sampler({ ...GREEDY, temperature: 1, ...sampling }, number);
  return Array.from({ length: count }, () => sampler.next(Float32Array.from(logits)));
};

test('without a temperature the likeliest token is taken, the lower id of equals', () => {
  const sampler = new Sampler(GREEDY, 0);
  assert.equal(sampler.next(Float32Array.of(-3, 2, 2, 1)), 1);
  assert.equal(sampler.next(Float32Array.of(Number.NEGATIVE_INFINITY, -5)), 1);
});

test('tokens are drawn as often as their probabilities say', () => {
  // Probabilities 1/7, 2/7, 4/7; at temperature 1/2 their squares: 1/21, 4/21, 16/21.
  const logits = [0, Math.LN2, 2 * Math.LN2];
  const count = 20_000;
  for (const [temperature, shares] of [
    [1, [1 / 7, 2 / 7, 4 / 7]],
    [0.5, [1 / 21, 4 / 21, 16 / 21]],
  ] as const) {
    const ids = drawn(logits, { temperature }, count);
    for (const [id, share] of shares.entries()) {
      const got = ids.filter((each) => each === id).length / count;
      // Five standard deviations.
      assert.ok(Math.abs(got - share) < 5 * Math.sqrt((share * (1 - share)) / count), `${temperature} ${id}: ${got}`);
    }
  }
});

test('top-k and top-p leave the likeliest, and the token that reaches the share', () => {
  const logits = [0.5, 0.1, 0.25, 0.15].map(Math.log);
  const seen = (sampling: Partial<Sampling>) => [...new Set(drawn(logits, sampling, 500))].sort();
  assert.deepEqual(seen({ topK: 2 }), [0, 2]);
  assert.deepEqual(seen({ topK: 1 }), [0]);
  assert.deepEqual(seen({ topP: 0.5 }), [0]);
  assert.deepEqual(seen({ topP: 0.51 }), [0, 2]);
  assert.deepEqual(seen({ topP: 0.9 }), [0, 2, 3]);
  // The share is of what top-k has left: 0.5 of 0.75 is two thirds.
  assert.deepEqual(seen({ topK: 2, topP: 0.66 }), [0]);
  assert.deepEqual(seen({ topK: 2, topP: 0.67 }), [0, 2]);
});

test('draws repeat with the seed and differ by seed and by sequence', () => {
  const logits = Array.from({ length: 50 }, (_, i) => Math.sin(i));
  const base = drawn(logits, { seed: 3 }, 40);
  assert.deepEqual(drawn(logits, { seed: 3 }, 40), base);
  assert.notDeepEqual(drawn(logits, { seed: 4 }, 40), base);
  assert.notDeepEqual(drawn(logits, { seed: 3 }, 40, 1), base);
});

test('NaN and nonsense are refused', () => {
  const sampler = new Sampler(GREEDY, 0);
  for (const logits of [[1, Number.NaN], [Number.NEGATIVE_INFINITY], [Number.POSITIVE_INFINITY, 0]])
    assert.throws(() => sampler.next(Float32Array.from(logits)), designed('LPQ_MODULE_NUMERICS', /NaN or infinity/));
  for (const [wrong, words] of [
    [{ temperature: -1 }, /--temperature/],
    [{ temperature: 1, topK: 1.5 }, /--top-k/],
    [{ temperature: 1, topP: 0 }, /--top-p/],
    [{ topK: 5 }, /--top-k has no effect without --temperature/],
    [{ topP: 0.5 }, /--top-p has no effect/],
  ] as const)
    assert.throws(() => checkSampling({ ...GREEDY, ...wrong }), designed('LPQ_USAGE', words));
});
