import assert from 'node:assert/strict';
import test from 'node:test';
import { badSetting } from '../../../formats/foreign/module.js';
import { printed } from '../../../src/core/printed.js';
import { designed } from '../../formats/scratch.js';

test('a value of a file is told in messages, however deeply it is nested', () => {
  assert.equal(printed({ a: [1] }), '{"a":[1]}');
  assert.equal(printed(undefined), 'nothing');
  const deep: unknown = JSON.parse(`${'['.repeat(1e5)}${']'.repeat(1e5)}`);
  assert.equal(printed(deep), 'a value that is nested too deeply');
  assert.throws(
    () => badSetting('config.json', 'bits', deep, '4'),
    designed('LPQ_CONFIG', /'bits'.*nested too deeply/),
  );
});
