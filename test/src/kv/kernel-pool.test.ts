import assert from 'node:assert/strict';
import path from 'node:path';
import { test } from 'node:test';
import { createRuntime, fromTyped, readTyped, type Tensor, typed } from '../../../native/binding.js';
import { shareDirectory } from '../../../src/calibrate/bundled.js';
import { CACHE, KERNEL_CACHE } from '../../../src/cli/options/kv-cache.js';
import { KvPool } from '../../../src/kv/cache.js';
import { kvSchemeOf } from '../../../src/kv/choose.js';
import { KernelPool, KernelSequence } from '../../../src/kv/kernel-pool.js';
import { blockTokens, kvPage } from '../../../src/kv/page.js';
import { KvSequence } from '../../../src/kv/sequence.js';
import { verifyCache } from '../../../src/verify/kv.js';
import type { CacheMaker } from '../../../src/verify/kv-case.js';
import { Recorder } from '../../../src/verify/report.js';
import { decodeF16, poisoned, Random } from '../../native/support.js';
import { ALL } from '../../sample.js';
import { plainSource } from '../model/fixtures.js';

const source = plainSource(path.join(shareDirectory(), 'tiny-llama'));
const rt = createRuntime(2);

/** The model's shapes with heads of other dims. */
const headsOf = (headDim: number): typeof source =>
  headDim === 64 ? source : Object.assign(Object.create(source), { config: { ...source.config, head_dim: headDim } });

async function failuresOf(maker: CacheMaker, wish: Parameters<typeof kvSchemeOf>[0], steps: number, headDim = 64) {
  const recorder = new Recorder();
  const caches = [{ maker, device: rt }];
  await verifyCache({ runtime: rt, recorder, caches, seed: 5, steps }, kvSchemeOf(wish, headDim), headsOf(headDim));
  const { count } = recorder.checks().find(({ name }) => name === 'kv') as { count: number };
  return { count, failures: recorder.failures.map(({ message }) => message) };
}

for (const wish of [
  { kv: '8' },
  { kv: '4', granularity: 'token' },
  { kv: '4', group: 32, fit: true },
  ...(ALL
    ? ([{ kv: '4' }, { kv: '2' }, { kv: '4', group: 32 }, { kv: 'k8v4', granularity: 'token', group: 64 }] as const)
    : []),
] as const)
  test(`the verifier agrees with the CPU's kv_pack and kv_decode: ${JSON.stringify(wish)}`, async () => {
    const { count, failures } = await failuresOf(KERNEL_CACHE, wish, ALL ? 1000 : 200);
    assert.deepEqual(failures, []);
    assert.ok(count > 80);
  });

for (const [wish, headDim] of [
  [{ kv: '4' }, 80],
  [{ kv: '8', granularity: 'token' }, 192],
  [{ kv: '2' }, 320],
] as const)
  test(`heads of ${headDim} dims, stored as more: ${JSON.stringify(wish)}`, async () => {
    for (const maker of [CACHE, KERNEL_CACHE]) {
      const { count, failures } = await failuresOf(maker, wish, 150, headDim);
      assert.deepEqual(failures, []);
      assert.ok(count > 80);
    }
  });

test('and finds what a kernel could do wrong: pages of another order, a token left out', async () => {
  const wrong: [string, (pool: KernelPool) => void][] = [
    [
      'pages of another table',
      (pool) => {
        const { pack } = pool;
        pool.pack = (table, ...rest) => pack.call(pool, [...table].reverse(), ...rest);
      },
    ],
    [
      'the newest token left out',
      (pool) => {
        const { attend } = pool;
        pool.attend = (sequences, ...rest) => {
          for (const each of sequences) if (each.tail > 0) each.tail -= 1;
          attend.call(pool, sequences, ...rest);
        };
      },
    ],
  ];
  for (const [name, change] of wrong) {
    const maker: CacheMaker = {
      ...KERNEL_CACHE,
      make: (device, scheme, page, pages) => {
        const pool = new KernelPool(device, scheme, page, pages);
        change(pool);
        return {
          tensors: pool.tensors,
          sequence: (table) => new KvSequence(pool, table),
          attend: (sequences, q, y, p) => pool.attend(sequences as readonly KvSequence[], q, y, p),
          dispose: () => pool.dispose(),
        };
      },
    };
    const { failures } = await failuresOf(maker, { kv: '8' }, 0);
    assert.ok(
      failures.some((message) => /of attention \(f\d\d\) is/.test(message)),
      name,
    );
  }
});

test('a scheme that no kernel reads is said to be none', async () => {
  const recorder = new Recorder();
  const scheme = { ...kvSchemeOf({ kv: '4' }, 64), values: { bits: 2, group: 64 } } as const;
  await verifyCache({ runtime: rt, recorder, caches: [{ maker: KERNEL_CACHE, device: rt }], seed: 5 }, scheme, source);
  const { count, detail } = recorder.checks().find(({ name }) => name === 'kv') as { count: number; detail: string };
  assert.equal(count, 0);
  assert.match(detail, /not on cpu: no kernel reads keys of 4 bits beside values of 2/);
});

/** Every form that kernels read; of the orders of heads by turns. */
const WISHES = [
  ...(['2', '4', '8', 'k8v4'] as const).flatMap((kv) =>
    ([32, 64, 128] as const).map((group) => ({ kv, group, granularity: 'channel' }) as const),
  ),
  { kv: '2', group: 64, granularity: 'token' },
  { kv: '4', group: 128, granularity: 'token' },
  { kv: 'k8v4', group: 32, granularity: 'token' },
  ...(['4', '8', 'k8v4'] as const).map((kv) => ({ kv, granularity: 'token' }) as const),
] as const;
const FORMS = WISHES.flatMap((wish, i) =>
  // 80, 96, 192 and 320 are stored as 128, 128, 256 and 512.
  (ALL ? [64, 80, 128, 192, 256, 320, 512] : [[64, 96, 128, 512, 256, 80, 320, 192][i % 8] as number]).map(
    (headDim) => ({
      wish,
      headDim,
    }),
  ),
);

test('kv_pack and kv_decode are the layout engine and kv_attention, in every form', async () => {
  const random = new Random(21);
  const [heads, kvHeads] = [4, 2];
  for (const [n, { wish, headDim }] of FORMS.entries()) {
    const scheme = kvSchemeOf(wish, headDim);
    const whole = scheme.form === 'turbomind';
    const order = n % 2 === 0 || whole ? 'inner' : 'outer';
    const shape = { heads: kvHeads, headDim, tokens: whole ? 64 : blockTokens(scheme), order } as const;
    const pools = [new KvPool(rt, kvPage(scheme, shape), 3), new KernelPool(rt, scheme, shape, 3)] as const;
    const length = 2 * shape.tokens + 5;
    const width = kvHeads * headDim;
    const rows = (count: number, columns: number) =>
      fromTyped('f32', [count, columns], random.normals(count * columns, 2));
    const [k, v, q] = [rows(length, width), rows(length, width), fromHalves(random, heads * headDim)];
    const sequences = pools.map((pool) => new KvSequence(pool, [2, 0, 1]));
    for (const sequence of sequences) sequence.prefill(k, v);
    await rt.sync();
    for (const [i, tensor] of pools[0].tensors.entries())
      assert.ok(
        Buffer.compare(tensor.bytes(), (pools[1].tensors[i] as Tensor).bytes()) === 0,
        `${JSON.stringify(wish)}, heads of ${headDim}: tensor ${i}`,
      );
    const exact = poisoned('f64', q.shape);
    const [wide, half] = [poisoned('f32', q.shape), poisoned('f16', q.shape)];
    const queries = { heads, scale: headDim ** -0.5 };
    pools[0].attend([sequences[0] as KvSequence], q, exact, queries);
    for (const y of [wide, half]) pools[1].attend([sequences[1] as KvSequence], q, y, queries);
    await rt.sync();
    const [want, got] = [typed<Float64Array>(exact), typed<Float32Array>(wide)];
    // Sums in f64 in another order of terms, rounded once.
    want.forEach((value, i) => {
      assert.ok(Math.abs((got[i] as number) - value) <= 2 ** -24 * Math.abs(value) + 1e-12);
      const near = decodeF16(typed<Uint16Array>(half)[i] as number);
      assert.ok(Math.abs(near - value) <= 2.001 * 2 ** -12 * Math.abs(value) + 2 ** -25);
    });
    for (const each of [...sequences, ...pools]) each.dispose();
  }
});

/** A query that f16 holds. */
function fromHalves(random: Random, count: number): Tensor {
  const x = random.normals(count).map((value) => Math.round(value * 256) / 256);
  return fromTyped('f32', [1, count], Float32Array.from(x));
}

test('bad tables, lengths, tails and numbers are refused by the CPU', async () => {
  const scheme = kvSchemeOf({ kv: '4' }, 64);
  const pool = new KernelPool(rt, scheme, { heads: 1, headDim: 64, tokens: 128 }, 2);
  const rows = fromTyped('f32', [128, 64], new Float32Array(128 * 64).fill(1));
  const q = fromTyped('f32', [1, 64], new Float32Array(64));
  const refused = async (pattern: RegExp, code = 'LPQ_NATIVE_ARGUMENT') =>
    assert.rejects(rt.sync(), { code, message: pattern });
  new KvSequence(pool, [2]).prefill(rows, rows);
  await refused(/page 2, which is none/);
  const nan = fromTyped('f32', [128, 64], new Float32Array(128 * 64).fill(Number.NaN, 700, 701));
  for (const [k, v] of [
    [nan, rows],
    [rows, nan],
  ] as const) {
    new KvSequence(pool, [0]).prefill(k, v);
    await refused(/NaN/, 'LPQ_NATIVE_NUMERICS');
  }
  assert.throws(() => new KvSequence(pool, []).prefill(rows, rows), /no page/);
  for (const [packed, tail, table, pattern] of [
    [128, 0, [-1], /page -1/],
    [256, 0, [0], /longer than its pages/],
    [32, 0, [0], /not whole tiles of 128/],
  ] as const) {
    const sequence = new KvSequence(pool, table);
    [sequence.packed, sequence.tail] = [packed, tail];
    pool.attend([sequence], q, rt.allocate('f32', [1, 64]), { heads: 1, scale: 1 });
    await refused(pattern);
  }
  // Whole tiles of keys that end within a block: what is packed next would end behind the page.
  const mixed = new KernelPool(rt, kvSchemeOf({ kv: 'k8v4' }, 64), { heads: 1, headDim: 64, tokens: 128 }, 2);
  const within = new KernelSequence(mixed, [0, 1]);
  [within.packed, within.tail] = [64, 128];
  within.append(q, q);
  await refused(/64 packed tokens, not whole blocks of 128/);
  // Nothing at all gives 0.
  const y = poisoned('f32', [1, 64]);
  pool.attend([new KvSequence(pool, [])], q, y, { heads: 1, scale: 1 });
  assert.ok((await readTyped<Float32Array>(rt, y)).every((value) => value === 0));
});
