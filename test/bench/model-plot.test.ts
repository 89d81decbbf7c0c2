import assert from 'node:assert/strict';
import test from 'node:test';
import { modelPlots } from '../../bench/model/plot.js';
import type { ModelBench, ModelRow } from '../../bench/model/schema.js';

function row(weights: string, kv: number, m: number, context: number): ModelRow {
  const ms = 3 + m / 8 + (kv * context) / 1e5;
  return {
    ...{ weights, kv, phase: 'decode', m, context, ms, tokensPerSecond: (1000 * m) / ms },
    ...{ kernels: { linear: 1 }, shares: { products: 1, attention: 0, rest: 0 } },
    ...{ calls: 1, weightBytes: 1, cacheBytes: 1, workBytes: 1, memoryBytes: 3 },
  };
}

const BENCH: ModelBench = {
  ...{ format: 'lpq-model-bench', version: 1, lpq: 'x', date: '2026-01-02', shape: 'A <b> & "c"' },
  machine: {
    ...{ device: 'cuda:0', gpu: 'GPU', arch: 90, multiprocessors: 1, l2Bytes: 1, isa: 'avx2', threads: 1 },
    processor: 'CPU',
  },
  ...{
    blocks: 4,
    measuredBlocks: 4,
    group: 128,
    int4Share: 0.84,
    head: 'dense',
    activations: 'bf16',
    passes: 1,
    seconds: 1,
  },
  leftOut: [],
  rows: [
    { ...row('dense', 16, 1, 2048), phase: 'prefill' },
    ...['dense', 'u4'].flatMap((weights) =>
      [16, 4].flatMap((kv) => [
        ...[128, 1, 16].map((m) => row(weights, kv, m, 1024)),
        ...[131072, 8192].map((context) => row(weights, kv, 16, context)),
      ]),
    ),
  ],
};

const lines = (svg: string) =>
  [...svg.matchAll(/<g class="(w\d) (k\d+)"><polyline points="([^"]+)"\/><circle/g)].map(
    ([, colour, dash, points]) => ({
      colour,
      dash,
      points: (points as string).split(' ').map((point) => point.split(',').map(Number) as [number, number]),
    }),
  );

test('tokens a second over sequences and over contexts: alone, for both themes, marks inside and in their order', () => {
  const plots = modelPlots(BENCH);
  assert.deepEqual(
    plots.map(({ over }) => over),
    ['m', 'context'],
  );
  for (const { over, svg } of plots) {
    const open: string[] = [];
    for (const [, close, name, self] of svg.matchAll(/<(\/?)([a-z]+)[^<>]*?(\/?)>/g)) {
      if (close) assert.equal(open.pop(), name);
      else if (!self) open.push(name as string);
    }
    assert.deepEqual(open, []);
    assert.ok(!/<script|href|url\(|@import|NaN|undefined/.test(svg));
    assert.match(svg, /prefers-color-scheme: dark/);
    assert.match(svg, /A &lt;b&gt; &amp; &quot;c&quot;: tokens a second/);
    const drawn = lines(svg);
    assert.deepEqual(
      drawn.map(({ colour, dash }) => `${colour} ${dash}`),
      ['w0 k16', 'w0 k4', 'w1 k16', 'w1 k4'],
    );
    for (const { points } of drawn) {
      assert.equal(points.length, 3);
      for (const [i, [x, y]] of points.entries()) {
        assert.ok(x >= 86 && x <= 720 && y >= 60 && y <= 420);
        const before = points[i - 1];
        if (!before) continue;
        // More sequences make more tokens, longer contexts fewer; up is less in SVG.
        assert.ok(x > before[0] && (over === 'm' ? y < before[1] : y > before[1]));
      }
    }
  }
  assert.match(plots[0]!.svg, /contexts of 1024 tokens.*>dense KV4 M=128 of 1024: [\d,]+ tokens\/s</s);
  assert.match(plots[1]!.svg, /M = 16.*>u4 KV16 M=16 of 131072: [\d,]+ tokens\/s</s);
});

test('what cannot be drawn is refused or left out', () => {
  const [only] = modelPlots(BENCH, { context: 1024, m: 1 });
  assert.equal(only?.over, 'm');
  assert.throws(() => modelPlots(BENCH, { m: 3 }), /no decode step has m 3/);
  assert.throws(() => modelPlots(BENCH, { context: 5, m: 16 }), /no decode step has context 5/);
  assert.throws(() => modelPlots({ ...BENCH, rows: BENCH.rows.slice(0, 2) }), /several M, or of several contexts/);
  assert.throws(() => modelPlots({ ...BENCH, rows: [] }), /no decode step/);
  const many = Array.from({ length: 9 }, (_, i) => row(`u${i}`, 16, 1, 8));
  assert.throws(() => modelPlots({ ...BENCH, rows: many }), /8 colours/);
});
