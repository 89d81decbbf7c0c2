import assert from 'node:assert/strict';
import { existsSync, readdirSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime } from '../../../native/binding.js';
import { packCheckpoint } from '../../../src/pack/pack-checkpoint.js';
import { scratch } from '../../formats/scratch.js';
import { checkpointOf, made } from './checkpoint.js';

const runtime = createRuntime(2);

test('a directory that does not pass its proof never appears', async () => {
  const dir = scratch();
  const modules = { 'l.0.a': made({ type: 'i4', n: 64, k: 128, group: 128 }) };
  const input = await checkpointOf(dir, 'canonical', modules);
  const output = path.join(dir, 'out');
  const work = packCheckpoint({
    ...{ input, output, runtime },
    target: 'compressed-tensors',
    onComplete: async (place) => {
      assert.ok(existsSync(path.join(place, 'lpq.json')), 'it is whole');
      assert.ok(!existsSync(output), 'it has not appeared');
      throw new Error('a difference');
    },
  });
  await assert.rejects(work, /a difference/);
  assert.deepEqual(readdirSync(dir), ['canonical']);
});
