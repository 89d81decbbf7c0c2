import assert from 'node:assert/strict';
import { test } from 'node:test';
import { CONTEXTS, parseContexts, parseHeadDim, parseHeads } from '../../bench/attention/cases.js';
import { attentionMarkdown } from '../../bench/attention/markdown.js';
import { appendPass, cycleOf, decodePass, exactPass, packPass } from '../../bench/attention/operands.js';
import { torchMicroseconds } from '../../bench/attention/peers.js';
import { benchAttention } from '../../bench/attention/run.js';
import { type AttentionRow, attentionBenchSchema } from '../../bench/attention/schema.js';
import { Noise } from '../../bench/kernels/operands.js';
import { createRuntime, type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { kvSchemeOf } from '../../src/kv/choose.js';

const usage = (error: unknown) => error instanceof LpqError && error.code === 'LPQ_USAGE';

test('contexts, heads and dims are parsed, and what is none is refused', () => {
  assert.deepEqual(parseContexts('1x128k, 8x32768'), [
    { sequences: 1, tokens: 131072 },
    { sequences: 8, tokens: 32768 },
  ]);
  for (const bad of ['', '8', '0x1k', '8x100', '8x2048k', '1x1k,1x1024'])
    assert.throws(() => parseContexts(bad), usage);
  assert.deepEqual(parseHeads('32/8,4/4'), [
    { heads: 32, kvHeads: 8 },
    { heads: 4, kvHeads: 4 },
  ]);
  for (const bad of ['32', '8/32', '9/2', '0/0', '4/2,4/2']) assert.throws(() => parseHeads(bad), usage);
  assert.equal(parseHeadDim('128'), 128);
  assert.equal(parseHeadDim('96'), 96);
  assert.equal(parseHeadDim('512'), 512);
  for (const text of ['100', '32', '520', 'x']) assert.throws(() => parseHeadDim(text), usage);
});

test("torch's figures are of their device, heads and contexts alone", () => {
  const query = { gpu: 'NVIDIA H200', heads: 32, kvHeads: 8, headDim: 128 };
  assert.deepEqual(
    CONTEXTS.map((context) => torchMicroseconds({ ...query, ...context })),
    [161, 259, 407],
  );
  const [one] = CONTEXTS as [(typeof CONTEXTS)[number]];
  for (const other of [{ gpu: undefined }, { gpu: 'NVIDIA H100' }, { heads: 16 }, { headDim: 64 }, { tokens: 4096 }])
    assert.equal(torchMicroseconds({ ...query, ...one, ...other }), null, JSON.stringify(other));
});

test('what is timed is attention, appending and packing: results are there, lengths grow by cycles', async () => {
  const rt = createRuntime({ threads: 2 });
  const noise = new Noise(rt);
  for (const wish of [{ kv: '8' }, { kv: '4', granularity: 'token' }] as const) {
    const scheme = kvSchemeOf(wish, 64);
    const one = { scheme, sequences: 2, tokens: 256, heads: 4, kvHeads: 2, headDim: 64, tail: scheme.residual && 3 };
    for (const pass of [decodePass(rt, noise, one, 0), exactPass(rt, noise, one, 0)]) {
      await rt.time(pass.calls, { passes: 1 });
      const values = typed<Uint16Array>(pass.calls[0]?.outputs[0] as Tensor);
      assert.ok(values.some((bits) => bits !== 0) && values.every((bits) => (bits & 0x7c00) !== 0x7c00));
      pass.dispose();
    }
    const append = appendPass(rt, noise, one, 3);
    assert.equal(append.calls.length, cycleOf(one));
    await rt.time(append.calls, { passes: 3 });
    const packed = typed<Int32Array>(append.calls[0]?.outputs[4] as Tensor);
    // Four cycles, one of which does not count; a full tail is packed as the next token comes.
    assert.deepEqual([...packed], new Array(2).fill((scheme.residual ? 3 : 4) * cycleOf(one)));
    append.dispose();
    const pack = packPass(rt, noise, one);
    await rt.time(pack.calls, { passes: 1 });
    pack.dispose();
  }
  noise.dispose();
});

const REQUEST = {
  schemes: [kvSchemeOf({ kv: '2' }, 64), kvSchemeOf({ kv: 'k8v4', granularity: 'token' }, 64)],
  contexts: [{ sequences: 1, tokens: 256 }],
  heads: [{ heads: 2, kvHeads: 1 }],
  headDim: 64,
  tail: 5,
  passes: 1,
  exact: true,
  lpq: '0.0.0',
} as const;

test('rows on the CPU: of the schema, with bytes counted once', async () => {
  const rt = createRuntime({ threads: 2 });
  const seen: AttentionRow[] = [];
  const bench = await benchAttention(rt, REQUEST, { onRow: (row) => seen.push(row) });
  assert.deepEqual(attentionBenchSchema.parse(JSON.parse(JSON.stringify(bench))), bench);
  assert.deepEqual(bench.rows, seen);
  assert.deepEqual(
    bench.rows.map(({ name, tail, bytes }) => [name, tail, bytes]),
    [
      // Codes; a scale and zero for 32 tokens or dims, of both sides; tail; q and y.
      ['KV2', 5, (256 * 64 * 4) / 8 + (2 * 4 * 256 * 64) / 32 + 4 * 5 * 64 + 4 * 2 * 64],
      ['K8V4', 0, (256 * 64 * 12) / 8 + 2 * 4 * 256 + 4 * 2 * 64],
    ],
  );
  for (const row of bench.rows) {
    assert.ok(Math.abs(row.copyShare - row.bytes / (row.us * 1e-6) / bench.copyBytesPerSecond) < 1e-9);
    assert.ok(Math.abs(row.append.share - row.append.us / (row.append.us + row.us)) < 1e-9);
    assert.ok(row.exactUs !== null && row.torchUs === null && row.leastUs <= row.us);
  }
  const text = attentionMarkdown(bench);
  assert.match(text, /^.+, 2 threads; copies /);
  assert.match(text, /^\| KV2 channel 32 \| 1x256 \| 2\/1 of 64 \| /m);
  assert.match(text, /^\| K8V4 token \| /m);
  assert.ok(!/torch/.test(text));
  const [row] = bench.rows as [AttentionRow];
  const compared = { ...bench, rows: [{ ...row, torchUs: 2 * row.us, torchRatio: 2 }], peers: { torch: 'somewhere' } };
  assert.match(attentionMarkdown(compared), /torch \/ this \|[\s\S]*\| 2\.00 \|[\s\S]*^torch: somewhere\.$/m);
});
