import assert from 'node:assert/strict';
import { readdirSync, readFileSync, utimesSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { readReport } from '../../../formats/report/read.js';
import { type Report, type ReportModule, reportSchema } from '../../../formats/report/schema.js';
import { publishedSchemas } from '../../../src/cli/schemas.js';
import type { LpqError } from '../../../src/core/error.js';
import { compareReports, comparisonPage } from '../../../src/report/compare.js';
import { reportPage } from '../../../src/report/html.js';
import { replaceFile, writeReport } from '../../../src/report/write.js';
import { scratch } from '../../formats/scratch.js';
import { root } from '../cli/lpq.js';
import { wellFormed } from './markup.js';

function module(name: string, over: Partial<ReportModule> = {}): ReportModule {
  const expert = /experts\.(\d+)/.exec(name)?.[1];
  return {
    name,
    block: Number(/layers\.(\d+)/.exec(name)?.[1] ?? 0),
    kind: name.split('.').at(-1) as string,
    expert: expert === undefined ? null : Number(expert),
    scheme: 'i4 g128',
    shape: [256, 128],
    method: 'gptq',
    bitsPerWeight: 4.125,
    relativeError: 0.01,
    damp: 0.01,
    tokens: 512,
    seconds: 0.5,
    note: null,
    measures: {
      dampAttempts: 1,
      clip: { groups: 64, mean: 0.85, smallest: 0.6, largest: 1.02, histogram: [0, 0, 4, 10, 30, 18, 2, 0] },
      range: { smallestScale: 0.001, largestScale: 0.1, largestWeight: 0.8, above: 16.3, below: 4 },
    },
    int4Share: null,
    ...over,
  };
}

function report(modules: ReportModule[], over: Partial<Report> = {}): Report {
  return reportSchema.parse({
    format: 'lpq-report',
    version: 1,
    output: 'out',
    lpq: '0.1.0',
    source: { name: 'model', revision: null, fingerprint: 'a'.repeat(64) },
    method: 'gptq',
    options: { bits: 4 },
    calibration: null,
    totals: {
      ...{ modules: modules.length, weights: 1, carriedTensors: 2, bitsPerWeight: 4.125, relativeError: 0.01 },
      ...{ int4Share: null, seconds: 12, peakRss: 1e9 },
    },
    modules,
    stages: [{ name: 'quantize qkv', seconds: 3, rss: 1e9, device: null }],
    waits: { read: 1, write: 0.5 },
    machine: { cpu: 'a CPU', cores: 2, memory: 8e9, device: 'cpu' },
    evaluations: [],
    scaleTraining: null,
    ...over,
  } satisfies Report);
}

const evaluation = {
  ...{ text: 'b.txt', sha256: 'b'.repeat(64), ctx: 512, prefix: [], windows: 4, tokens: 2044 },
  perplexity: { ppl: 9.5, error: 0.2 },
  source: {
    name: 'model',
    perplexity: { ppl: 9, error: 0.2 },
    kl: { mean: 0.05, error: 0.001 },
    sameTop: { mean: 0.9, error: 0.01 },
  },
};

test('the published schemas are those that lpq checks by', () => {
  for (const [name, schema] of Object.entries(publishedSchemas()))
    assert.deepEqual(
      JSON.parse(readFileSync(path.join(root, 'share', 'schemas', name), 'utf8')),
      JSON.parse(JSON.stringify(schema)),
      `${name}: npm run schemas`,
    );
});

test('a page is well-formed, complete, and asks for nothing from elsewhere', () => {
  const modules = [0, 1, 2].flatMap((block) => [
    module(`model.layers.${block}.self_attn.q_proj`, { relativeError: 0.01 * (block + 1), int4Share: 0.75 }),
    module(`model.layers.${block}.mlp.experts.0.up_proj`, { tokens: 0, note: 'only 0 calibration rows reached it' }),
    module(`model.layers.${block}.mlp.experts.1.up_proj`, { tokens: 900, damp: 0.1, measures: { dampAttempts: 3 } }),
  ]);
  const { totals } = report(modules);
  const html = reportPage(report(modules, { evaluations: [evaluation], totals: { ...totals, int4Share: 0.75 } }));
  wellFormed(html);
  for (const words of [
    '9.5 ± 0.2',
    '0.05 ± 0.001',
    'Experts',
    'saw none',
    'raised damping',
    'Range left in fp16',
    'Activations',
  ])
    assert.ok(html.includes(words), words);
  assert.doesNotMatch(html, /<script|\son\w+=|url\(|@import|src=|https?:/i);
  assert.match(html, /<meta name="viewport"/);
  assert.match(html, /prefers-color-scheme:dark/);
});

test('whatever a checkpoint calls its modules stays text', () => {
  const strange = fc.string({ unit: 'binary', minLength: 1, maxLength: 40 });
  fc.assert(
    fc.property(strange, strange, fc.double({ noNaN: true, noDefaultInfinity: true }), (name, text, error) => {
      const evil = `${name}</td><script>alert(1)</script>&"'${text}`;
      const one = report([module(evil, { kind: evil, note: evil, relativeError: Math.abs(error) })], { output: evil });
      for (const html of [reportPage(one), comparisonPage(one, report([module('other')]))]) {
        wellFormed(html);
        assert.doesNotMatch(html, /<script/i);
      }
    }),
    { numRuns: 200 },
  );
});

test('a run without statistics, or with nothing but the manifest, has a page too', () => {
  const bare = { relativeError: null, damp: null, tokens: null, seconds: null, measures: {}, block: null };
  const html = reportPage(report([module('lm_head', bare)], { stages: [], waits: null, machine: null }));
  wellFormed(html);
  assert.match(html, /rounding to nearest reads only weights/);
});

test('comparing tells what differs, the largest change first', () => {
  const a = report([module('m.0.a'), module('m.0.b'), module('m.0.gone')], { evaluations: [evaluation] });
  const worse = { ...evaluation, perplexity: { ppl: 10, error: 0.2 } };
  const b = report(
    [module('m.0.a', { relativeError: 0.011 }), module('m.0.b', { relativeError: 0.002 }), module('m.0.new')],
    { options: { bits: 3 }, evaluations: [worse] },
  );
  const found = compareReports(a, b);
  assert.deepEqual(
    found.modules.map(({ name, ratio }) => [name, Number(ratio?.toFixed(3))]),
    [
      ['m.0.b', 0.2],
      ['m.0.a', 1.1],
    ],
  );
  assert.deepEqual([found.onlyA, found.onlyB], [['m.0.gone'], ['m.0.new']]);
  assert.deepEqual(found.options, [{ what: 'bits', a: '4', b: '3', change: '' }]);
  assert.ok(found.totals.some(({ what, change }) => what === 'perplexity on b.txt' && change === '0.5 ± 0.28'));
  wellFormed(comparisonPage(a, b));
});

test('a report is read back as it was written; a damaged one is refused at its place', async () => {
  const dir = path.join(scratch(), 'out');
  const made = report([module('m.0.a')]);
  const { json } = await writeReport(dir, made);
  assert.deepEqual(readReport(json), made);
  const { writeFileSync } = await import('node:fs');
  for (const [text, says] of [
    ['{', /not valid JSON/],
    [JSON.stringify({ ...made, version: 2 }), /at \/version/],
    [JSON.stringify({ ...made, modules: [{ name: 'a' }] }), /at \/modules\/0/],
  ] as const) {
    writeFileSync(json, text);
    assert.throws(
      () => readReport(json),
      (error: LpqError) => error.code === 'LPQ_REPORT' && says.test(error.message),
    );
  }
});

test('what killed processes left of a file goes when it is written again; what is being written stays', async () => {
  const dir = scratch();
  const file = path.join(dir, 'run.report.json');
  const hourAgo = new Date(Date.now() - 3_600_000);
  for (const name of ['run.report.json.lpq-tmp-7', 'run.report.json.lpq-tmp-x', 'other.report.json.lpq-tmp-7']) {
    writeFileSync(path.join(dir, name), 'half');
    utimesSync(path.join(dir, name), hourAgo, hourAgo);
  }
  writeFileSync(`${file}.lpq-tmp-8`, 'of a live one');
  await replaceFile(file, 'whole');
  assert.deepEqual(readdirSync(dir).sort(), [
    'other.report.json.lpq-tmp-7',
    'run.report.json',
    'run.report.json.lpq-tmp-8',
    'run.report.json.lpq-tmp-x',
  ]);
});

test('columns of which nothing is known are left out, and tokens are counted to the last', () => {
  const one = report([module('m.0.a', { tokens: 2048, damp: null }), module('m.0.b', { tokens: 2048, damp: null })]);
  const html = reportPage(one);
  assert.match(html, /data-label="tokens" class="n">2,048</);
  assert.doesNotMatch(html, /data-label="(damping|device memory)"/);
  assert.match(reportPage(report([module('m.0.a')])), /data-label="damping"/);
});

test('a grid of many blocks and experts names as many of them as there is room for', () => {
  const modules = Array.from({ length: 48 * 128 }, (_, i) =>
    module(`model.layers.${Math.floor(i / 128)}.mlp.experts.${i % 128}.up_proj`, { tokens: i }),
  );
  const html = reportPage(report(modules));
  wellFormed(html);
  const shown = [...html.matchAll(/>block (\d+)<\/text>/g)].map(([, block]) => Number(block));
  assert.ok(shown.length >= 12 && shown.length <= 24, String(shown));
  assert.equal(new Set(shown.map((block) => block % (shown[1] as number))).size, 1);
});

test('the training of scales has a chart of both curves', () => {
  const curve = [
    { step: 0, loss: 0.2, training: null },
    { step: 10, loss: 0.15, training: 0.18 },
  ];
  const html = reportPage(
    report([module('model.layers.0.mlp.up_proj')], {
      scaleTraining: { steps: 10, kept: 10, tokens: 40_960, heldOut: 4096, curve },
    }),
  );
  for (const text of ['Training of scales', 'held out', 'Step 10 of 10 was kept', 'step 10: 0.15'])
    assert.ok(html.includes(text), text);
  assert.ok(!reportPage(report([module('model.layers.0.mlp.up_proj')])).includes('Training of scales'));
});
