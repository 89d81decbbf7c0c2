import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ALL, drawn, sampled, seed } from './sample.js';

const cases = Array.from({ length: 23 }, (_, i) => i);

test('a matrix is sampled by the seed: the same cases for one seed, all of them over many', { skip: ALL }, () => {
  const draw = (from: string) => sampled('matrix', cases, 4, from);
  assert.deepEqual(draw('a'), draw('a'));
  const seen = new Set<number>();
  for (let commit = 0; commit < 64; commit++) {
    const part = draw(`commit ${commit}`);
    assert.ok(part.length === 5 || part.length === 6);
    for (const each of part) seen.add(each);
  }
  assert.equal(seen.size, cases.length);
  assert.deepEqual(sampled('short', [1], 4, 'x'), [1]);
});

test('a test alone is drawn in its share of commits', { skip: ALL || process.env.LPQ_TEST_NAMED === '1' }, () => {
  const commits = Array.from({ length: 300 }, (_, i) => drawn('a program', 3, `commit ${i}`));
  assert.ok(Math.abs(commits.filter(Boolean).length - 100) < 30);
});

test('LPQ_TEST_SEED stands in for the commit', () => {
  assert.equal(seed({ LPQ_TEST_SEED: 'mine' }), 'mine');
  assert.match(seed({}), /^([0-9a-f]{40}|no commit)$/);
});
