import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { readConfig, readConfigText } from '../../../formats/safetensors/checkpoint.js';
import { withoutBareFloats } from '../../../formats/safetensors/python-floats.js';
import { architectureOf } from '../../../src/model/architectures/index.js';
import { planModel } from '../../../src/model/plan.js';
import { ARCHITECTURES } from '../../src/model/fixtures.js';
import { scratch } from '../scratch.js';

test('infinities and NaN as Python writes them are read; strings that say so stay', () => {
  const text = '{"a": [0.0, Infinity], "b": "Infinity \\" NaN", "c": -Infinity, "NaN": NaN, "d": 1e5}';
  const inf = (tag: string) => ({ __float__: tag });
  assert.deepEqual(JSON.parse(withoutBareFloats(text)), {
    a: [0, inf('Infinity')],
    b: 'Infinity " NaN',
    c: inf('-Infinity'),
    NaN: inf('NaN'),
    d: 1e5,
  });
  assert.throws(() => JSON.parse(withoutBareFloats('{"a": Infinityy}')));
});

test('a config.json with an infinite bound of steps makes a plan, and is written as JSON', () => {
  const dir = path.join(scratch(), 'model');
  mkdirSync(dir);
  const file = path.join(ARCHITECTURES, 'granitemoehybrid', 'config.json');
  const text = readFileSync(file, 'utf8').replace('{', '{"time_step_limit": [0.25, Infinity],');
  writeFileSync(path.join(dir, 'config.json'), text);
  const config = readConfig(dir);
  assert.deepEqual(JSON.parse(readConfigText(dir, config)), config);
  const { attention } = planModel(architectureOf(config, dir), config, dir).blocks[0]!;
  const core = attention.kind === 'recurrent' ? attention.core : undefined;
  assert.ok(core?.kind === 'mamba2' && core.least === 0.25 && core.most === Number.POSITIVE_INFINITY);
});
