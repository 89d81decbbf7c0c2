import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createRuntime, type NativeRuntime, readTyped } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import type { KeyValueCache } from '../../../src/generate/cache.js';
import { DevicePackedCache, isPackedOnDevice } from '../../../src/generate/device-packed-cache.js';
import { HostPackedCache } from '../../../src/generate/host-packed-cache.js';
import { SequenceCache } from '../../../src/generate/recurrent-states.js';
import { disposeResident, loadResident, type ResidentModel } from '../../../src/generate/resident.js';
import { disposeStep, type Entry, makeStep, runStep } from '../../../src/generate/step.js';
import { kvSchemeOf } from '../../../src/kv/choose.js';
import { randomSource } from '../model/fixtures.js';

const rt = createRuntime(2);
const CONFIG = {
  model_type: 'llama',
  vocab_size: 90,
  hidden_size: 64,
  head_dim: 64,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  num_hidden_layers: 3,
  intermediate_size: 64,
};
const LENGTH = 300;
const PROMPT = 140;
const ids = Int32Array.from({ length: LENGTH }, (_, i) => (i * 29 + (i % 7) * 11 + 3) % 90);

const shape = { blocks: CONFIG.num_hidden_layers, slots: 1, most: LENGTH };

async function logits(model: ResidentModel, kept: KeyValueCache): Promise<Float32Array[]> {
  const cache = new SequenceCache(rt, kept, shape);
  const found: Float32Array[] = [];
  const run = async (entry: Entry) => {
    const step = makeStep(rt, [entry]);
    const tensor = await runStep(rt, model, cache, step);
    found.push(await readTyped(rt, tensor));
    tensor.dispose();
    disposeStep(step);
  };
  await run({ slot: 0, past: 0, ids: ids.subarray(0, PROMPT) });
  for (let t = PROMPT; t < LENGTH; t++) await run({ slot: 0, past: t, ids: ids.subarray(t, t + 1) });
  return found;
}

/** The CPU as a device: what keeps tokens takes rows of 16 bits there. */
const device = new Proxy(rt, {
  get(target, name) {
    if (name === 'enqueue')
      return (...[op, inputs, outputs, p]: Parameters<NativeRuntime['enqueue']>) => {
        const taken =
          op !== 'cache_append'
            ? inputs
            : inputs.map((x) => {
                if (x.dtype !== 'f16') return x;
                const wide = target.allocate('f32', x.shape);
                ops.cast(target, x, wide);
                return wide;
              });
        target.enqueue(op, taken, outputs, p);
      };
    const member = Reflect.get(target, name, target) as unknown;
    return typeof member === 'function' ? member.bind(target) : member;
  },
});

/** Of all logits: root mean squares of differences over that of logits. */
function off(got: readonly Float32Array[], want: readonly Float32Array[]): number {
  let [differences, all] = [0, 0];
  for (const [t, row] of want.entries())
    for (const [i, value] of row.entries()) {
      differences += (value - (got[t]?.[i] as number)) ** 2;
      all += value ** 2;
    }
  return Math.sqrt(differences / all);
}

test('bits by layer: the cache that kernels read gives what the cache of any scheme gives, and takes what its bits say', async () => {
  const model = await loadResident(rt, randomSource(CONFIG));
  const layers = new Map([[0, '8'] as const, [2, 'k8v4'] as const]);
  const scheme = kvSchemeOf({ kv: '4', group: 32, layers }, 64);
  assert.ok(isPackedOnDevice(scheme));
  const [host, kernels, plain] = [
    new HostPackedCache(rt, scheme, shape),
    new DevicePackedCache(device, scheme, shape),
    new HostPackedCache(rt, kvSchemeOf({ kv: '4', group: 32 }, 64), shape),
  ];
  assert.equal(kernels.form, 'KV4, KV8 in layer 0, K8V4 in layer 2 (bitdecoding)');
  const [want, got, others] = [await logits(model, host), await logits(model, kernels), await logits(model, plain)];
  // Queries are f16 to kernels, 2^-11, so numbers of later layers differ by as much, and some codes by a step, 1/15 of a group.
  assert.ok(off(got, want) < 0.02, `${off(got, want)}`);
  assert.ok(off(others, want) > 0.1, `${off(others, want)}`);
  // Three pages of 128 tokens: 64 keys and values of 8, 4 and 4 with 8 bits, and f16 twice for 32 of each. Tails of 128 tokens in f16.
  const numbers = 2 * 64 * (8 + 4 + 6) + 3 * 2 * 64;
  assert.equal(kernels.bytes, (3 * 128 * numbers) / 8 + 3 * 2 * 128 * 64 * 2);
  for (const cache of [host, kernels, plain]) cache.dispose();
  disposeResident(model);
});
