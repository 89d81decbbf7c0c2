import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime, fromTyped, type Tensor, typed } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { CACHE } from '../../../src/cli/options/kv-cache.js';
import { KvPool } from '../../../src/kv/cache.js';
import { kvSchemeOf } from '../../../src/kv/choose.js';
import { blockTokens, kvPage } from '../../../src/kv/page.js';
import { KvSequence } from '../../../src/kv/sequence.js';
import { makeBatch } from '../../../src/model/batch.js';
import { cachedAttention } from '../../../src/model/cached-attention.js';
import { verifyCache } from '../../../src/verify/kv.js';
import type { CacheMaker } from '../../../src/verify/kv-case.js';
import { Recorder } from '../../../src/verify/report.js';
import { poisoned, Random } from '../../native/support.js';
import { plainSource } from '../model/fixtures.js';

const source = plainSource(path.join(shareDirectory(), 'tiny-llama'));
const rt = createRuntime(2);

async function failuresOf(
  maker: CacheMaker,
  wish: Parameters<typeof kvSchemeOf>[0],
  steps = 1000,
): Promise<{ count: number; failures: string[] }> {
  const recorder = new Recorder();
  const caches = [{ maker, device: rt }];
  await verifyCache({ runtime: rt, recorder, caches, seed: 3, steps }, kvSchemeOf(wish, 64), source);
  const { count } = recorder.checks().find(({ name }) => name === 'kv') as { count: number };
  return { count, failures: recorder.failures.map(({ message }) => message) };
}

for (const wish of [{ kv: '2' }, { kv: 'k8v4', granularity: 'token' }, { kv: '4', group: 32, fit: true }] as const)
  test(`the verifier agrees with the cache: ${JSON.stringify(wish)}`, async () => {
    // Fitting takes 75 passes over a group.
    const { count, failures } = await failuresOf(CACHE, wish, 'fit' in wish ? 150 : 1000);
    assert.deepEqual(failures, []);
    assert.ok(count > 80);
  });

test('a verifier that looked at values only in the mean would miss these: values of zeros, one bit, two lanes exchanged', async () => {
  const wrong: [string, (bytes: Uint8Array) => void][] = [
    ['values of zeros', (bytes) => bytes.fill(0)],
    [
      'one bit',
      (bytes) => {
        for (let at = 5; at < bytes.length; at += 4096) bytes[at]! ^= 0x40;
      },
    ],
    ['two words exchanged', (bytes) => bytes.copyWithin(2, 0, 2)],
  ];
  for (const [name, change] of wrong) {
    const maker: CacheMaker = {
      ...CACHE,
      make: (...args) => {
        const cache = CACHE.make(...args);
        let changed = false;
        return {
          ...cache,
          get tensors() {
            const values = cache.tensors[2] as Tensor;
            if (!changed) change(values.bytes());
            changed = true;
            return cache.tensors;
          },
        };
      },
    };
    const { failures } = await failuresOf(maker, { kv: '2' }, 0);
    assert.ok(
      failures.some((message) => /codes of values/.test(message)),
      `${name}: ${failures.length} failures`,
    );
    assert.ok(
      failures.some((message) => /of attention \(f32\) is/.test(message)),
      `${name}: attention`,
    );
  }
});

test('the simulation of a forward pass is what a decoder computes token by token', async () => {
  const random = new Random(9);
  const [heads, kvHeads] = [4, 2];
  for (const [wish, headDim] of [
    [{ kv: '4' }, 80],
    [{ kv: '8', granularity: 'token' }, 64],
    [{ kv: '4', granularity: 'token', group: 32 }, 64],
  ] as const) {
    const scheme = kvSchemeOf(wish, headDim);
    const lengths = [150, 1, 300];
    const total = lengths.reduce((sum, each) => sum + each, 0);
    const batch = makeBatch(
      rt,
      lengths.map((length) => new Int32Array(length)),
    );
    const rows = (width: number) => fromTyped('f32', [total, width], random.normals(total * width));
    const [q, k, v] = [rows(heads * headDim), rows(kvHeads * headDim), rows(kvHeads * headDim)] as const;
    const [keys, values] = [k, v].map((x) => fromTyped('f32', x.shape, typed(x).slice())) as [Tensor, Tensor];
    const y = poisoned('f32', q.shape);
    cachedAttention(rt, scheme, { q, k, v, y }, batch, { heads, kvHeads, headDim, scale: 0.125 });
    const page = kvPage(scheme, {
      heads: kvHeads,
      headDim,
      tokens: scheme.form === 'turbomind' ? 64 : blockTokens(scheme),
    });
    const pool = new KvPool(rt, page, 16);
    let first = 0;
    let free = 15;
    for (const length of lengths) {
      const sequence = new KvSequence(
        pool,
        Array.from({ length: Math.ceil(length / page.tokens) }, () => free--),
      );
      for (let t = 0; t < length; t++) {
        const at = (x: Tensor): Tensor => x.view([1, x.shape[1] as number], (first + t) * (x.shape[1] as number));
        const out = poisoned('f32', [1, heads * headDim]);
        sequence.step(at(keys), at(values), at(q), out, { heads, scale: 0.125 });
        if (t % 37 === 0 || t % page.block < 2 || t === length - 1) {
          await rt.sync();
          const got = typed(y).subarray((first + t) * heads * headDim, (first + t + 1) * heads * headDim);
          // Both sum 300 products of magnitude 5 in fp32, in another order: 300 * 2^-23 * 5, twice.
          typed(out).forEach((value, i) => {
            assert.ok(
              Math.abs(value - (got[i] as number)) < 4e-4,
              `${scheme.form} token ${t} of ${length}, output ${i}: ${value} and ${got[i]}`,
            );
          });
        }
        out.dispose();
      }
      first += length;
      sequence.dispose();
    }
    pool.dispose();
  }
});

test('a cache refuses what it has no room for', async () => {
  const page = kvPage(kvSchemeOf({ kv: '4' }, 64), { heads: 1, headDim: 64, tokens: 128 });
  const pool = new KvPool(rt, page, 1);
  const sequence = new KvSequence(pool, [0]);
  const rows = fromTyped('f32', [256, 64], new Float32Array(256 * 64));
  assert.throws(() => sequence.prefill(rows, rows), /no page/);
  sequence.dispose();
  const stray = new KvSequence(pool, [5]);
  stray.packed = 128;
  const q = fromTyped('f32', [1, 64], new Float32Array(64));
  pool.attend([stray], q, poisoned('f32', [1, 64]), { heads: 1, scale: 1 });
  await assert.rejects(rt.sync(), /page 5/);
});
