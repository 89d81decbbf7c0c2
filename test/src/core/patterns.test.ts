import assert from 'node:assert/strict';
import test from 'node:test';
import { Patterns, patternsOf } from '../../../src/core/patterns.js';
import { designed } from '../../formats/scratch.js';
import { vectors } from '../../formats/vectors.js';

interface Golden {
  readonly names: readonly string[];
  /** A pattern, and which names re.match takes; null where re refuses it. */
  readonly patterns: readonly (readonly [pattern: string, matches: readonly number[] | null])[];
}

const golden = vectors<Golden>('python-patterns.json');
/** Which Python has and lpq has not: refused by name, never read as something else. */
const REFUSED = ['(?x) l m'];

test("patterns mean what Python's re.match takes them for, or are refused", () => {
  for (const [pattern, matches] of golden.patterns) {
    const patterns = new Patterns('here', [pattern]);
    const found = () => golden.names.flatMap((name, i) => (patterns.first(name) === 0 ? [i] : []));
    if (matches && !REFUSED.includes(pattern)) assert.deepEqual(found(), matches, pattern);
    else assert.throws(found, designed('LPQ_CONFIG', 'here holds a regular expression that lpq cannot read'), pattern);
  }
  assert.ok(golden.patterns.length > 30);
});

test('of several the first counts, exact names among expressions', () => {
  const patterns = new Patterns('here', ['^b\\.c$', 'b', '^b\\.c$', '^a\\.b-1$', 'a', '.*(?<!x)d$']);
  assert.deepEqual(
    ['b.c', 'b.cc', 'bxc', 'a.b-1', 'a.b-2', 'd', 'xd', ''].map((name) => patterns.first(name)),
    [0, 1, 1, 3, 4, 5, -1, -1],
  );
  const list = ['x'];
  assert.equal(
    patternsOf(list, 'here', () => list),
    patternsOf(list, 'there', () => []),
  );
});

test('untrusted input that never ends: an expression ends with its budget, and is not tried again', () => {
  const name = `${'a'.repeat(60)}.q_proj`;
  const budget = { base: 0.2, name: 0, rule: 0 };
  for (const pattern of ['(a+)+$', '(?:(?=a)a|a)*b', '(a|aa)+(?!x)$', '(a*)*\\1b']) {
    const patterns = new Patterns("config.json: 'ignore'", ['lm_head', pattern], budget);
    const refused = designed(
      'LPQ_BUDGET',
      /config.json: 'ignore' holds a regular expression that takes too long on 'a+\.q_proj'/,
    );
    const started = performance.now();
    for (let i = 0; i < 100; i++)
      assert.throws(
        () => patterns.first(name),
        (error) => refused(error) && designed('LPQ_BUDGET', `got ${pattern}`)(error),
      );
    assert.ok(performance.now() - started < 10_000);
  }
});

test('untrusted input that never ends: many names that each take a while, together', () => {
  // Some milliseconds each.
  const patterns = new Patterns('here', ['(?:(a+)+)+$'], { base: 0.2, name: 0, rule: 0 });
  assert.throws(
    () => {
      for (let i = 0; i < 1000; i++) patterns.first(`${'a'.repeat(16)}.${i}`);
    },
    designed('LPQ_BUDGET', /here/),
  );
});

test('as many rules and modules as the largest models have are no hang', () => {
  const names = Array.from({ length: 20_000 }, (_, i) => `model.layers.${i % 60}.mlp.experts.${i}.down_proj`);
  const exact = new Patterns(
    'here',
    names.map((name) => `^${name.replaceAll('.', '\\.')}$`),
  );
  for (const [i, name] of names.entries()) assert.equal(exact.first(name), i);
  const rules = Array.from({ length: 40 }, (_, i) => `.*layers\\.${i + 100}\\..*(?<!x)proj$`);
  const patterns = new Patterns('here', rules);
  for (const name of names.slice(0, 2000)) assert.equal(patterns.first(name), -1);
});
