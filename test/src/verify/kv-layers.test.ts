import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import type { KvModelScheme } from '../../../formats/kv/scheme.js';
import { createRuntime } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { CACHE } from '../../../src/cli/options/kv-cache.js';
import { kvSchemeOf } from '../../../src/kv/choose.js';
import { verifyCache } from '../../../src/verify/kv.js';
import type { CacheMaker } from '../../../src/verify/kv-case.js';
import { Recorder } from '../../../src/verify/report.js';
import { plainSource } from '../model/fixtures.js';

const source = plainSource(path.join(shareDirectory(), 'tiny-llama'));
const rt = createRuntime(2);
const SCHEME = kvSchemeOf({ kv: '4', group: 32, layers: new Map([[1, '8']]) }, 64);

async function failuresOf(scheme: KvModelScheme, maker: CacheMaker = CACHE) {
  const recorder = new Recorder();
  await verifyCache({ runtime: rt, recorder, caches: [{ maker, device: rt }], seed: 7, steps: 0 }, scheme, source);
  const { count } = recorder.checks().find(({ name }) => name === 'kv') as { count: number };
  return { count, failures: recorder.failures.map(({ message }) => message) };
}

test('a cache with bits by layer is proved in each of its widths', async () => {
  const [all, one] = [await failuresOf(SCHEME), await failuresOf(kvSchemeOf({ kv: '4', group: 32 }, 64))];
  assert.deepEqual(all.failures, []);
  assert.ok(all.count > 1.5 * one.count, `${all.count} checks, ${one.count} of one width`);
});

test('a layer that is packed otherwise is found, and told by its widths', async () => {
  const other: CacheMaker = {
    ...CACHE,
    make: (device, scheme, ...rest) =>
      CACHE.make(device, scheme.keys.bits === 8 ? { ...scheme, fit: true } : scheme, ...rest),
  };
  const { failures } = await failuresOf(SCHEME, other);
  assert.ok(failures.length > 0);
  for (const message of failures) assert.match(message, /^KV8, /);
});

test('a layer that the model lacks is found', async () => {
  const { failures } = await failuresOf({ ...SCHEME, layers: { 4: { keys: 8, values: 8 } } });
  assert.deepEqual(failures, [
    'the KV cache scheme in lpq.json names layer 4, which has no keys and values of its own',
  ]);
});
