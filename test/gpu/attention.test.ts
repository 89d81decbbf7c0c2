import assert from 'node:assert/strict';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { createRuntime, fromTyped, type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { KERNEL_CACHE } from '../../src/cli/kv-cache.js';
import { openAnySource } from '../../src/cli/sources.js';
import { kvSchemeOf } from '../../src/kv/choose.js';
import { KernelPool, KernelSequence } from '../../src/kv/kernel-pool.js';
import { blockTokens } from '../../src/kv/page.js';
import { makeBatch } from '../../src/model/batch.js';
import { decodedAttention } from '../../src/model/decoded-attention.js';
import { verifyCache } from '../../src/verify/kv.js';
import { Recorder } from '../../src/verify/report.js';
import { Random } from '../native/support.js';
import { gpuTest } from './gpu.js';

// The cache of keys and values on the device: as `lpq verify` examines it, and against the CPU's operations of the same names.

const MODEL = path.join(
  path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..'),
  'share',
  'tiny-llama',
);

const WISHES = [
  { kv: '4' },
  { kv: '2' },
  { kv: '8', group: 64 },
  { kv: 'k8v4', granularity: 'token', group: 32 },
  { kv: '4', granularity: 'token' },
  { kv: '8', granularity: 'token' },
] as const;

for (const wish of WISHES)
  gpuTest(`the verifier agrees with the kernels' cache, 1000 tokens appended: ${JSON.stringify(wish)}`, async () => {
    const [runtime, device] = [createRuntime(), createRuntime({ device: 'cuda:0' })];
    const source = await openAnySource(MODEL, runtime);
    const recorder = new Recorder();
    const caches = [{ maker: KERNEL_CACHE, device }];
    await verifyCache({ runtime, recorder, caches, seed: 11 }, kvSchemeOf(wish, 64), source);
    source.close();
    assert.deepEqual(
      recorder.failures.map(({ message }) => message),
      [],
    );
    assert.ok((recorder.checks().find(({ name }) => name === 'kv')?.count as number) > 80);
  });

/** Numbers that f16 holds. */
const halves = (random: Random, count: number): Float32Array<ArrayBuffer> =>
  Float32Array.from(random.normals(count), (x) => Math.round(x * 256) / 256);

gpuTest('pages of every form have the bytes that the CPU packs, of prompts and of appended tokens', async () => {
  const random = new Random(41);
  const [cpu, gpu] = [createRuntime(), createRuntime({ device: 'cuda:0' })];
  for (const kv of ['2', '4', '8', 'k8v4'] as const)
    for (const [granularity, group] of [
      ['channel', 32],
      ['channel', 64],
      ['channel', 128],
      ['token', 64],
      ['token', undefined],
    ] as const)
      for (const headDim of [64, 128, 256]) {
        const scheme = kvSchemeOf({ kv, granularity, ...(group && { group }) }, headDim);
        const whole = scheme.form === 'turbomind';
        const tokens = whole ? 64 : blockTokens(scheme);
        const order = whole || group === 64 ? 'inner' : 'outer';
        const width = 2 * headDim;
        const length = 2 * tokens + 3;
        const [k, v] = [random.normals(length * width, 2), random.normals(length * width)];
        const made = [cpu, gpu].map((rt) => {
          const pool = new KernelPool(rt, scheme, { heads: 2, headDim, tokens, order }, 4);
          const sequence = new KernelSequence(pool, [3, 0, 2, 1]);
          const rows = [k, v].map((x) => upload(rt, [length, width], x)) as [Tensor, Tensor];
          sequence.prefill(...rows);
          const [q, y] = [rt.allocate('f32', [1, width]), rt.allocate('f32', [1, width])];
          for (let step = 0; step < tokens; step++) {
            const [key, value] = rows.map((x) => x.view([1, width], (step + 1) * width)) as [Tensor, Tensor];
            sequence.step(key, value, q, y, { heads: 2, scale: 0.125 });
            for (const view of [key, value]) view.dispose();
          }
          return { rt, pool };
        });
        const [left, right] = await Promise.all(
          made.map(({ rt, pool }) => Promise.all(pool.tensors.map((tensor) => rt.download(tensor)))),
        );
        for (const [i, tensor] of (left as Tensor[]).entries())
          assert.ok(
            Buffer.compare(tensor.bytes(), ((right as Tensor[])[i] as Tensor).bytes()) === 0,
            `KV${kv} ${granularity} ${group}, heads of ${headDim}: tensor ${i}`,
          );
      }
});

gpuTest('evaluation decodes through the cache as the CPU does', async () => {
  const random = new Random(43);
  const [heads, kvHeads, headDim] = [8, 2, 128];
  const lengths = [300, 1, 0, 257];
  const total = lengths.reduce((sum, each) => sum + each, 0);
  const x = [heads, kvHeads, kvHeads].map((count) => halves(random, total * count * headDim));
  for (const wish of WISHES) {
    const scheme = kvSchemeOf(wish, headDim);
    const outputs = await Promise.all(
      [createRuntime(), createRuntime({ device: 'cuda:0' })].map(async (rt) => {
        const [q, k, v] = x.map((data) => upload(rt, [total, data.length / total], data)) as [Tensor, Tensor, Tensor];
        const y = rt.allocate('f32', q.shape);
        const batch = makeBatch(
          rt,
          lengths.map((length) => new Int32Array(length)),
        );
        decodedAttention(rt, scheme, { q, k, v, y }, batch, { heads, kvHeads, headDim, scale: 0.02 });
        return readTyped<Float32Array>(rt, y);
      }),
    );
    const [want, got] = outputs as [Float32Array, Float32Array];
    // Scores err by 0.02 * 2^-11 * sum |q||k| (of 128 products of at most 20: 0.01 at the most), weights and values by 2^-10 more.
    want.forEach((value, i) => {
      assert.ok(Math.abs(value - (got[i] as number)) < 0.03, `${JSON.stringify(wish)} ${i}: ${value}, ${got[i]}`);
    });
  }
});

function upload(rt: NativeRuntime, shape: readonly number[], data: Float32Array<ArrayBuffer>): Tensor {
  return rt.upload(fromTyped('f32', shape, data));
}
