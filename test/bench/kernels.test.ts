import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  parseActivations,
  parseGroup,
  parseShapes,
  parseTokens,
  parseTypes,
  TABLE,
} from '../../bench/kernels/cases.js';
import { geometricMean, kernelMarkdown } from '../../bench/kernels/markdown.js';
import { Noise, packedOperands, rotation } from '../../bench/kernels/operands.js';
import { marlinMicroseconds } from '../../bench/kernels/peers.js';
import { rooflineSvg } from '../../bench/kernels/roofline.js';
import { benchKernels } from '../../bench/kernels/run.js';
import { type KernelBench, type KernelRow, kernelBenchSchema } from '../../bench/kernels/schema.js';
import { SPACE, settings, settingText } from '../../bench/kernels/space.js';
import { limitNames, median } from '../../bench/kernels/time.js';
import { tuneProduct } from '../../bench/kernels/tune.js';
import { createRuntime, readTyped, uploadTyped } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { QUANT_TYPES, quantType } from '../../src/core/quant-type.js';

const code = (expected: string) => (error: unknown) => error instanceof LpqError && error.code === expected;

test('types, shapes, tokens, groups and dtypes are read, and what is none of them is refused', () => {
  assert.deepEqual(
    parseTypes('u4, f6e3m2').map(({ name }) => name),
    ['u4', 'f6e3m2'],
  );
  assert.equal(parseTypes('all').length, QUANT_TYPES.length);
  assert.deepEqual(parseShapes('table'), TABLE);
  assert.deepEqual(parseShapes('4096x28672,128X64'), [
    { k: 4096, n: 28672 },
    { k: 128, n: 64 },
  ]);
  assert.deepEqual(parseTokens('64,1,16'), [1, 16, 64]);
  assert.deepEqual(['32', '64', '128', 'channel'].map(parseGroup), [32, 64, 128, 0]);
  assert.equal(parseActivations('bf16'), 'bf16');
  assert.throws(() => parseTypes('u9'), code('LPQ_TYPE'));
  for (const bad of ['', 'u4,', 'u4,u4']) assert.throws(() => parseTypes(bad), code('LPQ_USAGE'), bad);
  for (const bad of ['4096', '0x4', '4x', 'axb', '1x9999999999', 'table,4096x4096', ','])
    assert.throws(() => parseShapes(bad), code('LPQ_USAGE'), bad);
  for (const bad of ['0', '-1', '1.5', 'x', '1,1', '', '99999999'])
    assert.throws(() => parseTokens(bad), code('LPQ_USAGE'), bad);
  for (const bad of ['16', '0', '']) assert.throws(() => parseGroup(bad), code('LPQ_USAGE'), bad);
  assert.throws(() => parseActivations('f32'), code('LPQ_USAGE'));
});

test('weights rotate among copies that exceed the L2 cache eight times, and at least two', () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 2 ** 30 }), fc.integer({ min: 1, max: 2 ** 26 }), (bytes, l2) => {
      const { copies, products } = rotation(bytes, l2);
      assert.ok(copies >= 2 && copies * bytes >= 8 * l2 && products >= copies && products >= 20);
      assert.ok(copies === 2 || (copies - 1) * bytes < 8 * l2);
    }),
  );
});

test("MARLIN's figures stand for 4 bits in groups of 128 on an H200, and for nothing else", () => {
  const query = { gpu: 'NVIDIA H200', type: 'u4', group: 128, k: 8192, n: 57344, m: 16 };
  assert.equal(marlinMicroseconds(query), 107);
  assert.equal(marlinMicroseconds({ ...query, type: 'i4', m: 4096 }), 10563);
  for (const other of [
    { gpu: 'NVIDIA H100 80GB HBM3' },
    { gpu: undefined },
    { type: 'u3' },
    { group: 64 },
    { m: 8 },
    { n: 57345 },
  ])
    assert.equal(marlinMicroseconds({ ...query, ...other }), null, JSON.stringify(other));
  for (const { k, n } of TABLE) assert.ok((marlinMicroseconds({ ...query, k, n }) as number) > 0);
});

test('the tuning space has every setting once, and none that repeats another', () => {
  for (const m of [1, 16, 32, 64, 128]) {
    const list = settings(m);
    assert.equal(new Set(list.map((each) => JSON.stringify(each))).size, list.length);
    assert.ok(list.every(({ slices, reduce }) => slices !== 1 || reduce !== 'cluster'));
    assert.ok(list.every((each) => Object.entries(each).every(([, value]) => value !== 0)));
  }
  assert.ok(settings(16).length >= 200 && settings(128).length < settings(64).length);
  // What gemm_packed takes: every kernel, and no setting that it would refuse.
  const header = readFileSync(new URL('../../../native/ops/gemm_packed.h', import.meta.url), 'utf8');
  const [taken = [], forced = []] = [
    ...(/GemmSettings::read\(([^;]*);/.exec(header)?.[1] ?? '').matchAll(/\{([^}]*)\}/g),
  ].map(([, list]) => [...(list as string).matchAll(/"(\w+)"/g)].map((match) => match[1]));
  assert.deepEqual([...new Set(SPACE.map(({ fixed }) => fixed.kernel))].sort(), [...forced].sort());
  for (const name of SPACE.flatMap(({ axes }) => Object.keys(axes))) assert.ok(taken.includes(name), name);
  assert.equal(
    settingText({ kernel: 'stream', warps: 8, reduce: 'cluster', slices: 2 }),
    'stream warps 8 cluster slices 2',
  );
  assert.equal(settingText({}), 'library');
});

test('reasons for slow clocks have names; medians are medians', () => {
  assert.deepEqual(limitNames([0, 1, 4, 0x48]), ['power cap', 'hardware slowdown', 'temperature (hardware)']);
  assert.deepEqual(limitNames([1]), []);
  assert.equal(median([3, 1, 2]), 2);
  assert.equal(median([4, 1, 2, 3]), 2.5);
  assert.equal(geometricMean([]), null);
  assert.ok(Math.abs((geometricMean([1, 4]) as number) - 2) < 1e-12);
});

test('a runtime times passes over calls in its turn, and tells of the call that failed', async () => {
  const rt = createRuntime({ threads: 2 });
  const from = uploadTyped(rt, 'u8', [6], Uint8Array.of(1, 2, 3, 4, 5, 6));
  const to = rt.allocate('u8', [3, 2]);
  const copy = { op: 'copy', inputs: [from], outputs: [to] };
  const times = await rt.time([copy, copy], { passes: 4 });
  assert.equal(times.length, 4);
  assert.ok(times.every((seconds) => seconds > 0));
  assert.deepEqual([...(await readTyped<Uint8Array>(rt, to))], [1, 2, 3, 4, 5, 6]);
  const started = performance.now();
  assert.ok((await rt.time([copy], { seconds: 0.05 })).length > 1);
  assert.ok(performance.now() - started >= 45);
  const short = { ...copy, outputs: [rt.allocate('u8', [5])] };
  await assert.rejects(rt.time([copy, short]), { code: 'LPQ_NATIVE_ARGUMENT', op: 'copy', message: /different sizes/ });
  await assert.rejects(rt.time([{ op: 'no_such', inputs: [], outputs: [] }]), { code: 'LPQ_NATIVE_OP' });
  assert.throws(() => rt.time([]), { code: 'LPQ_NATIVE_ARGUMENT' });
  assert.throws(() => rt.time([copy], { passes: 0 }), { code: 'LPQ_NATIVE_ARGUMENT' });
  assert.equal((await rt.time([copy])).length, 9);
  assert.equal(rt.telemetry(), undefined);
  const endless = rt.time([copy], { seconds: 3600 });
  setTimeout(() => rt.abort(), 30);
  await assert.rejects(endless, { code: 'LPQ_ABORTED' });
});

const REQUEST = {
  types: [quantType('u4'), quantType('f6e3m2')],
  shapes: [{ k: 160, n: 96 }],
  tokens: [1, 3],
  dtype: 'bf16',
  group: 32,
  passes: 2,
  sustained: 'largest',
  seconds: 0.05,
  tune: false,
  lpq: '0.0.0',
} as const;

test('products run on the CPU: rows of the schema, with a share of the copies and no peers', async () => {
  const seen: KernelRow[] = [];
  const rt = createRuntime({ threads: 2 });
  const bench = await benchKernels(rt, REQUEST, { onRow: (row) => seen.push(row) });
  assert.deepEqual(kernelBenchSchema.parse(JSON.parse(JSON.stringify(bench))), bench);
  assert.deepEqual(bench.rows, seen);
  assert.deepEqual(
    bench.rows.map(({ type, m, sustained }) => [type, m, sustained !== undefined]),
    [
      ['u4', 1, false],
      ['u4', 3, true],
      ['f6e3m2', 1, false],
      ['f6e3m2', 3, true],
    ],
  );
  // Weights are padded to blocks of 32 x 128, scales are 16 bits a group of 32 k.
  assert.equal(bench.rows[1]?.bytes, 3 * 2 * 512 * 4 + 3 * 5 * 32 * 2 + 2 * 3 * (160 + 96));
  for (const row of bench.rows) {
    assert.equal(row.cublasUs, null);
    assert.equal(row.marlinUs, null);
    assert.ok(Math.abs(row.copyShare - row.bytes / (row.us * 1e-6) / bench.copyBytesPerSecond) < 1e-9);
    assert.ok(row.leastUs <= row.us);
  }
  assert.ok((bench.rows[1]?.sustained?.seconds as number) >= 0.03);
});

test('the timed product is the product: sums of what noise fills', async () => {
  const rt = createRuntime({ threads: 1 });
  const noise = new Noise(rt);
  const setting = { type: quantType('u4'), dtype: 'f16', group: 128, k: 128, n: 32, l2Bytes: 0 } as const;
  const operands = packedOperands(noise, rt, setting);
  const { calls, tensors } = operands.calls(2);
  await rt.time(calls, { passes: 1 });
  const y = await readTyped<Uint16Array>(rt, tensors[1]!);
  assert.ok(y.some((bits) => bits !== 0) && y.every((bits) => (bits & 0x7c00) !== 0x7c00));
});

test('tuning keeps the choice where nothing is faster, names what is, and counts what is refused', async () => {
  // A runtime whose products take what their setting says.
  const us: Record<string, number> = { library: 100, a: 99, b: 80, c: 130 };
  const runtime = {
    time: async (calls: readonly { params?: { kernel?: string } }[]) => {
      const kernel = calls[0]?.params?.kernel ?? 'library';
      if (!(kernel in us)) throw Object.assign(new Error('none'), { code: 'LPQ_NATIVE_ARGUMENT' });
      return [(us[kernel] as number) * 1e-6];
    },
  } as unknown as Parameters<typeof tuneProduct>[0];
  const operands = {
    products: 1,
    bytes: () => 1,
    calls: (_m: number, params: object = {}) => ({
      calls: [{ op: 'gemm_packed', inputs: [], outputs: [], params: { ...params } }],
      tensors: [],
    }),
    dispose: () => {},
  };
  const point = { type: 'u4', k: 1, n: 1, m: 1 };
  const found = await tuneProduct(runtime, operands, point, [{ kernel: 'a' }, { kernel: 'x' }, { kernel: 'b' }]);
  assert.deepEqual([found.best, found.within, found.refused], [{ kernel: 'b' }, false, 1]);
  assert.ok(Math.abs(found.ratio - 1.25) < 1e-9);
  const kept = await tuneProduct(runtime, operands, point, [{ kernel: 'c' }]);
  assert.deepEqual([kept.best, kept.within, kept.ratio], [{}, true, 1]);
  const near = await tuneProduct(runtime, operands, point, [{ kernel: 'a' }]);
  assert.deepEqual([near.best, near.within], [{ kernel: 'a' }, true]);
});

function synthetic(rows: readonly Partial<KernelRow>[]): KernelBench {
  const row = {
    type: 'u4',
    k: 4096,
    n: 4096,
    m: 16,
    us: 20,
    leastUs: 19,
    smClockMhz: 1980,
    bytes: 9e6,
    copyShare: 0.11,
  };
  const peers = { cublasUs: 30, cublasRatio: 1.5, marlinUs: 10, marlinRatio: 0.5 };
  return kernelBenchSchema.parse({
    format: 'lpq-kernel-bench',
    version: 1,
    lpq: '0.1.0',
    date: '2026-11-21',
    machine: {
      device: 'cuda:0',
      gpu: 'A <GPU> & more',
      arch: 90,
      multiprocessors: 132,
      l2Bytes: 5e7,
      isa: 'avx2',
      threads: 2,
      processor: 'x',
    },
    settings: { dtype: 'f16', group: 128, passes: 9, products: 20 },
    copyBytesPerSecond: 4e12,
    cublasFlops: 7e14,
    peers: { MARLIN: 'somewhere' },
    rows: rows.map((each) => ({ ...row, ...peers, ...each })),
    tuning: {
      space: 3,
      configurations: 2,
      refused: 1,
      seconds: 1,
      points: [
        {
          type: 'u4',
          k: 4096,
          n: 4096,
          m: 16,
          choiceUs: 20,
          bestUs: 10,
          best: { kernel: 'stream', slices: 2 },
          ratio: 2,
          within: false,
          variants: [{ params: { kernel: 'stream', slices: 2 }, us: 10 }],
          refused: 1,
        },
      ],
    },
    seconds: 1,
  });
}

test('results become Markdown: a table a type, or a table a shape where there are many', () => {
  const text = kernelMarkdown(synthetic([{}, { m: 32 }, { k: 8192, us: 40, cublasRatio: 6 }]));
  assert.match(text, /^\| u4, K×N \| M=16 \| M=32 \|$/m);
  assert.match(text, /^\| 4096x4096 \| 20\.0 \(11 %; 0\.50; 1\.50\) \|/m);
  assert.match(text, /^\| 8192x4096 \| 40\.0 \(11 %; 0\.50; 6\.00\) \| - \|$/m);
  assert.match(text, /^\| geometric mean \| 0\.50; 3\.00 \| 0\.50; 1\.50 \|$/m);
  assert.match(text, /within 5 % of the best for 0 of 1\./);
  assert.match(text, /^\| u4 4096x4096 M=16 \| 20\.0 \| 10\.0 \| 2\.00 \| stream slices 2 \|$/m);
  assert.match(text, /^MARLIN: somewhere\.$/m);
  const many = kernelMarkdown(
    synthetic(['u1', 'u2', 'u3', 'u5'].map((type) => ({ type, marlinUs: null, marlinRatio: null }))),
  );
  assert.match(many, /^\| 4096x4096 \| M=16 \|\n\| - \| - \|\n\| u1 \| 20\.0 \(11 %; 1\.50\) \|$/m);
});

test('the roofline is well-formed, stands alone, knows both themes, and keeps its marks inside', () => {
  const svg = rooflineSvg(synthetic([{}, { type: 'u8', m: 64, us: 12 }, { type: 'f3e1m1', m: 1 }]));
  // Tags open and close in order; text holds no stray signs.
  const open: string[] = [];
  for (const [, close, name, self] of svg.matchAll(/<(\/?)([a-z]+)[^<>]*?(\/?)>/g)) {
    if (close) assert.equal(open.pop(), name);
    else if (!self) open.push(name as string);
  }
  assert.deepEqual(open, []);
  assert.ok(!/&(?!amp;|lt;|gt;|quot;)/.test(svg));
  assert.ok(!/<script|href|url\(|@import/.test(svg));
  assert.match(svg, /prefers-color-scheme: dark/);
  assert.match(svg, /A &lt;GPU&gt; &amp; more/);
  for (const style of ['b3', 'b4', 'b8', 'dense']) assert.match(svg, new RegExp(`<g class="${style}"><circle `));
  const marks = [...svg.matchAll(/<circle cx="([\d.]+)" cy="([\d.]+)"/g)];
  assert.equal(marks.length, 3 + 3 + 4); // products, cuBLAS by M, and the legend's
  for (const [, x, y] of marks) assert.ok(Number(x) >= 76 && Number(x) <= 860 && Number(y) >= 50 && Number(y) <= 500);
  assert.match(svg, />4\.00 TB\/s, the device's copies</);
});
