import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CODES } from '../../../src/core/codes.js';
import { LpqError } from '../../../src/core/error.js';

test('error codes are sorted, shout and say what they mean', () => {
  const names = Object.keys(CODES);
  assert.deepEqual(names, [...names].sort());
  for (const [name, { exit, meaning }] of Object.entries(CODES)) {
    assert.match(name, /^LPQ_[A-Z][A-Z_]*[A-Z]$/);
    assert.ok([1, 2, 3, 4, 130, 141].includes(exit), name);
    assert.match(meaning, /^[A-Za-z].*\.$/s, name);
  }
});

test('an error carries its facts', () => {
  const cause = new Error('below');
  const error = new LpqError('LPQ_FILE', 'x cannot be read', { got: 1, expected: 2, hint: 'Look.', cause });
  assert.equal(error.code, 'LPQ_FILE');
  assert.equal(error.exitCode, 4);
  assert.deepEqual([error.got, error.expected, error.hint, error.cause], [1, 2, 'Look.', cause]);
  assert.equal(new LpqError('LPQ_FILE', 'x').cause, undefined);
});
