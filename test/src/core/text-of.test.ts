import assert from 'node:assert/strict';
import { test } from 'node:test';
import { asLpqError } from '../../../src/cli/terminal/failure.js';
import { textOf } from '../../../src/core/text-of.js';
import { architectureOf } from '../../../src/model/architectures/index.js';

test('what is no string in a file is no text', () => {
  assert.equal(textOf('LlamaForCausalLM'), 'LlamaForCausalLM');
  for (const value of [undefined, null, 3, true, [], {}, { toString: null }]) assert.equal(textOf(value), '');
});

test('architectures of a config.json that are no names end in a designed error', () => {
  assert.throws(
    () => architectureOf({ architectures: [{ toString: null }], model_type: 'none' } as never, 'config.json'),
    (error) => asLpqError(error).code !== 'LPQ_INTERNAL',
  );
});
