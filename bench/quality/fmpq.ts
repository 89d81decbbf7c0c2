/**
 * Perplexity of FMPQ on tiny-llama, with and without injected outlier channels: excess nats over the fp32 model against the
 * share of multiplications with 4-bit codes, beside W8A8, W4A8 and W4A4 without permutation.
 *
 *   node dist/bench/quality/fmpq.js [--rows "W4A8,W4A4 none,0.83 swap"] [--inject 64] [--set alpha=0.5] [--windows 64]
 *     [--json FILE] [--sites] [--plan]
 *
 * --sites lists the objective of every set of channels before and after its search; --plan stops there.
 *
 * A row: W4A16, W8A8, W4A8, or SHARE SEARCH [nogather] [noclip] [noscale] [kv4|kv4g32|kv4minmax] with 4-bit weights;
 * [integer]: on a two-level grid.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { openSource, SourceCheckpoint } from '../../formats/canonical/source.js';
import { createRuntime } from '../../native/binding.js';
import { bundledCalibration, shareDirectory } from '../../src/calibrate/bundled.js';
import { readTextFile } from '../../src/calibrate/read-text.js';
import { cutWindows, encodeAll, loadCalibration } from '../../src/calibrate/text.js';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import { perplexity } from '../../src/eval/perplexity.js';
import { observeFeeds } from '../../src/fmpq/observe.js';
import { FMPQ_DEFAULTS, type FmpqOptions, type SearchKind } from '../../src/fmpq/options.js';
import { decidePlan, type FmpqPlan } from '../../src/fmpq/plan.js';
import { fmpqQuantizer } from '../../src/fmpq/quantizer.js';
import { GPTQ_DEFAULTS } from '../../src/gptq/options.js';
import { gptqQuantizer } from '../../src/gptq/quantizer.js';
import { openModel } from '../../src/model/graph.js';
import type { KvForm } from '../../src/model/source.js';
import { quantizeCheckpoint } from '../../src/quantize/run.js';
import { schemeFromOptions } from '../../src/quantize/scheme.js';
import { injectOutliers } from '../../test/src/fmpq/outliers.js';

const CURVE = [
  'W4A16',
  'W8A8',
  'W4A8',
  '0.25 swap',
  '0.5 swap',
  '0.65 swap',
  '0.75 swap',
  '0.83 swap',
  '0.9 swap',
  '1 swap',
  '0.83 absmax',
  '0.83 error',
  '0.83 none',
  '0.83 swap nogather',
  '0.83 swap noclip',
  '1 none nogather noclip noscale',
  '0.83 swap kv4',
].join(',');

const { values } = parseArgs({
  options: {
    rows: { type: 'string', default: CURVE },
    inject: { type: 'string', default: '1' },
    share: { type: 'string', default: '0.02' },
    set: { type: 'string', default: '' },
    windows: { type: 'string', default: '100000' },
    samples: { type: 'string', default: '128' },
    json: { type: 'string' },
    sites: { type: 'boolean', default: false },
    plan: { type: 'boolean', default: false },
  },
});
const overrides = Object.fromEntries(
  values.set
    .split(',')
    .filter(Boolean)
    .map((pair) => [pair.split('=')[0] as string, Number(pair.split('=')[1])]),
);
const plain = path.join(shareDirectory(), 'tiny-llama');
const work = mkdtempSync(path.join(tmpdir(), 'lpq-fmpq-'));
const factor = Number(values.inject);
let model = plain;
if (factor !== 1) {
  model = path.join(work, 'injected', 'tiny-llama');
  await injectOutliers(plain, model, { factor, share: Number(values.share) });
}
const rt = createRuntime();
const encode = await openTokenizer(plain);
const file = path.join(shareDirectory(), 'text', 'books-valid.txt');
const windows = cutWindows(await encodeAll(readTextFile(file), encode), 512, file).slice(0, Number(values.windows));
const calibration = await loadCalibration(bundledCalibration(), encode, {
  samples: Number(values.samples),
  length: 512,
  seed: 0,
});

async function nats(dir: string): Promise<number> {
  const source = openSource(dir, rt);
  try {
    return (await perplexity(rt, source, openModel(source), windows, { ctx: 512 })).nll;
  } finally {
    source.close();
  }
}

const base = values.plan ? Number.NaN : await nats(model);
console.log(`fp32 ${base.toFixed(5)} nats (ppl ${Math.exp(base).toFixed(4)}), ${windows.length} windows of 512`);
const source = SourceCheckpoint.open(model);
const graph = openModel(source);
const names = new Set(
  graph.blocks.flatMap(({ stages }) =>
    stages.flatMap(({ feeds }) => feeds.flatMap(({ linears }) => linears.map(({ name }) => name))),
  ),
);
const feeds = await observeFeeds(rt, source, graph, calibration.sequences, names, FMPQ_DEFAULTS.rows);
const results: Record<string, unknown>[] = [];
for (const row of values.rows.split(',')) {
  const started = performance.now();
  const words = row.split(' ');
  const bits = row === 'W8A8' ? 8 : 4;
  const scheme = schemeFromOptions({
    bits,
    groupSize: 128,
    groupScales: words.includes('integer') ? 'integer' : 'free',
  });
  const quantizer = gptqQuantizer({ ...GPTQ_DEFAULTS, ...overrides });
  const fixed = /^W/.test(row);
  const options: FmpqOptions = {
    ...FMPQ_DEFAULTS,
    ...(fixed
      ? { share: 0, search: 'none', scale: 0 }
      : {
          share: Number(words[0]),
          search: words[1] as SearchKind,
          gather: !words.includes('nogather'),
          clip: !words.includes('noclip'),
          scale: words.includes('noscale') ? 0 : FMPQ_DEFAULTS.scale,
        }),
  };
  const kv: KvForm | undefined = row.includes('kv4')
    ? { bits: 4, group: row.includes('kv4g32') ? 32 : 64, ...(!row.includes('kv4minmax') && { clip: true }) }
    : undefined;
  let plan: FmpqPlan | undefined;
  if (words[0] !== 'W4A16') plan = await decidePlan(rt, source, graph, feeds, options);
  const planning = (performance.now() - started) / 1000;
  const output = path.join(work, `out-${results.length}`);
  if (!values.plan)
    await quantizeCheckpoint([rt], {
      source: model,
      output,
      scheme,
      rules: [],
      quantizer: plan ? fmpqQuantizer(quantizer, options, plan) : quantizer,
      calibration,
      ...(plan && { rewrite: plan.rewrite, activations: plan.forms }),
      ...(kv && { kv }),
      lmHead: false,
      options: {},
      version: 'bench',
    });
  const excess = values.plan ? Number.NaN : (await nats(output)) - base;
  rmSync(output, { recursive: true, force: true });
  const seconds = (performance.now() - started) / 1000;
  const count = (done: string) => plan?.sites.filter((site) => site.done === done).length ?? 0;
  results.push({ row, excess, share: plan?.share, error: plan?.error, sites: plan?.sites, planning, seconds });
  const share = plan ? `INT4 ${plan.share.blocks.toFixed(3)} blocks ${plan.share.macs.toFixed(3)} MACs` : '';
  console.log(
    `${row.padEnd(24)} excess ${excess.toFixed(4)}  ${share.padEnd(32)} relative error ${plan?.error.chosen.toFixed(4) ?? '-'}  ${count('folded')} folded ${count('gathered')} gathered  plan ${planning.toFixed(1)} s, ${seconds.toFixed(1)} s`,
  );
  if (values.sites)
    for (const site of plan?.sites ?? [])
      console.log(
        `    ${site.site} ${site.done} ${site.before.toPrecision(4)} -> ${site.after.toPrecision(4)} ${site.reason ?? ''}`,
      );
}
rmSync(work, { recursive: true });
if (values.json)
  writeFileSync(
    values.json,
    `${JSON.stringify({ command: process.argv.slice(1).join(' '), overrides, factor, base, windows: windows.length, results }, null, 2)}\n`,
  );
