import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { Evaluation } from '../../../formats/report/schema.js';
import { verdictOf, worstModules } from '../../../src/report/verdict.js';

const read = (kl: number, before: number, after: number): Evaluation => ({
  ...{ text: 'book.txt', sha256: 'a'.repeat(64), ctx: 512, prefix: [], windows: 8, tokens: 4088 },
  perplexity: { ppl: after, error: null },
  source: {
    ...{ name: 'model', perplexity: { ppl: before, error: null } },
    ...{ kl: { mean: kl, error: null }, sameTop: { mean: 0.9, error: null } },
  },
});

test('the worse of KL and perplexity decides; without a text the errors of modules; without either nothing', () => {
  assert.equal(verdictOf([read(0.04, 20, 20.5)], 1).grade, 'close');
  assert.equal(verdictOf([read(0.04, 20, 22)], 0).grade, 'noticeable');
  assert.equal(verdictOf([read(0.3, 20, 20)], 0).grade, 'large');
  assert.match(verdictOf([read(0.0376, 20, 20.56)], null).because, /KL 0\.0376 nats per token, perplexity \+2\.8 %/);
  assert.match(verdictOf([read(0.01, 20, 19.9)], null).because, /perplexity −0\.5 %/);
  assert.equal(verdictOf([{ ...read(1, 1, 1), source: null }], 0.02).grade, 'noticeable');
  assert.match(verdictOf([], 0.001).says, /from the errors of modules only/);
  assert.equal(verdictOf([], null).grade, 'unknown');
});

test('the worst modules come first, and those without an error not at all', () => {
  const of = (name: string, relativeError: number | null) => ({ name, relativeError });
  const found = worstModules([of('a', 0.1), of('b', null), of('c', 0.3), of('d', 0.2)], 2);
  assert.deepEqual(
    found.map(({ name }) => name),
    ['c', 'd'],
  );
});
