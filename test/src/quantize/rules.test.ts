import assert from 'node:assert/strict';
import test from 'node:test';
import type { LinearRef } from '../../../src/model/program.js';
import { schemeOf } from '../../../src/quantize/rules.js';
import { schemeFromOptions } from '../../../src/quantize/scheme.js';
import { designed } from '../../formats/scratch.js';

test('untrusted input that never ends: a rule that repeats repetitions, on a path made for it', () => {
  const linear = { name: `${'a'.repeat(60)}.b`, n: 128, k: 128 } as LinearRef;
  const [scheme, eight] = [schemeFromOptions({ bits: 4 }), schemeFromOptions({ bits: 8 })];
  const rules = [{ match: /^(a+)+$/, scheme: eight }];
  assert.throws(
    () => schemeOf(linear, scheme, rules, 0.2),
    designed('LPQ_BUDGET', /takes too long .*a\.b .*\^\(a\+\)\+\$/),
  );
  assert.equal(schemeOf({ ...linear, name: 'aa' }, scheme, rules), eight);
  assert.equal(schemeOf({ ...linear, name: 'b' }, scheme, rules), scheme);
});
