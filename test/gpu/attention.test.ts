import assert from 'node:assert/strict';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { createRuntime, fromTyped, type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { openWeights } from '../../src/artifact/open.js';
import { KERNEL_CACHE } from '../../src/cli/options/kv-cache.js';
import { kvSchemeOf } from '../../src/kv/choose.js';
import { KernelPool, KernelSequence } from '../../src/kv/kernel-pool.js';
import { blockTokens } from '../../src/kv/page.js';
import { makeBatch } from '../../src/model/batch.js';
import { decodedAttention } from '../../src/model/decoded-attention.js';
import { verifyCache } from '../../src/verify/kv.js';
import { exactAttention, UNIT } from '../../src/verify/kv-attention.js';
import { gridOf, quantizeRows, type Rows, rowsOf } from '../../src/verify/kv-numbers.js';
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
  { kv: '4', group: 32, fit: true },
] as const;

for (const wish of WISHES)
  gpuTest(`the verifier agrees with the kernels' cache, 1000 tokens appended: ${JSON.stringify(wish)}`, async () => {
    const [runtime, device] = [createRuntime(), createRuntime({ device: 'cuda:0' })];
    const source = await openWeights(MODEL, runtime);
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
  for (const [kv, fit] of [
    ...(['2', '4', '8', 'k8v4'] as const).map((kv) => [kv, false] as const),
    ['4', true],
    ['k8v4', true],
  ] as const)
    for (const [granularity, group] of [
      ['channel', 32],
      ['channel', 64],
      ['channel', 128],
      ['token', 64],
      ['token', undefined],
    ] as const)
      for (const headDim of fit ? [64, 80, 128] : [64, 80, 128, 192, 256]) {
        const scheme = kvSchemeOf({ kv, granularity, ...(group && { group }), ...(fit && { fit }) }, headDim);
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
          for (let step = 0; step < tokens; step++) {
            const [key, value] = rows.map((x) => x.view([1, width], (step + 1) * width)) as [Tensor, Tensor];
            sequence.append(key, value);
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
            `KV${kv} ${granularity} ${group}${fit ? ', fitted' : ''}, heads of ${headDim}: tensor ${i}`,
          );
      }
});

gpuTest('evaluation decodes through the cache: each query reads its tokens, packed and exact', async () => {
  const random = new Random(43);
  const [heads, kvHeads, headDim] = [8, 2, 128];
  const [columns, width] = [heads * headDim, kvHeads * headDim];
  const p = { heads, kvHeads, headDim, scale: 0.02 };
  const lengths = [300, 1, 0, 257];
  const total = lengths.reduce((sum, each) => sum + each, 0);
  const [k, v] = [halves(random, total * width), halves(random, total * width)];
  // Four times the token's own key, so that it has most of the weight and one that is left out, or too many, shows.
  const q = Float32Array.from({ length: total * columns }, (_, i) => {
    const [t, head] = [Math.floor(i / columns), Math.floor((i % columns) / headDim)];
    return 4 * (k[t * width + Math.floor((head * kvHeads) / heads) * headDim + (i % headDim)] as number);
  });
  const [cpu, gpu] = [createRuntime(), createRuntime({ device: 'cuda:0' })];
  for (const wish of WISHES) {
    const scheme = kvSchemeOf(wish, headDim);
    const y = gpu.allocate('f32', [total, columns]);
    const batch = makeBatch(
      gpu,
      lengths.map((length) => new Int32Array(length)),
    );
    const [qs, ks, vs] = [q, k, v].map((x) => upload(gpu, [total, x.length / total], x)) as [Tensor, Tensor, Tensor];
    decodedAttention(gpu, scheme, { q: qs, k: ks, v: vs, y }, batch, p);
    const got = await readTyped<Float32Array>(gpu, y);
    let first = 0;
    for (const length of lengths) {
      for (const t of [0, 1, 63, 64, 127, 128, 129, 255, 256, 299].filter((each) => each < length)) {
        const packed = scheme.residual === 0 ? t + 1 : t - (t % scheme.residual);
        const held = ([k, v] as const).map((x, side) => {
          const grid = gridOf(scheme, side === 0 ? 'keys' : 'values');
          const rows = x.subarray(first * width, (first + t + 1) * width);
          return rowsOf(quantizeRows(rows, packed, width, grid), rows, t + 1, width, grid);
        }) as [Rows, Rows];
        const query = q.slice((first + t) * columns, (first + t + 1) * columns);
        const exact = await exactAttention(cpu, query, held, { ...p, unit: UNIT.f32, top: 2 ** scheme.keys.bits - 1 });
        for (const [i, value] of exact.y.entries()) {
          const error = Math.abs((got[(first + t) * columns + i] as number) - value);
          assert.ok(error <= (exact.bound[i] as number), `${JSON.stringify(wish)}, token ${t}, output ${i}: ${error}`);
        }
      }
      first += length;
    }
  }
});

function upload(rt: NativeRuntime, shape: readonly number[], data: Float32Array<ArrayBuffer>): Tensor {
  return rt.upload(fromTyped('f32', shape, data));
}
