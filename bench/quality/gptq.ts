/**
 * Perplexity of quantized tiny-llama against the figures of the original GPTQ code (128 windows of 512 tokens from the
 * bundled books, ctx 512). Prints a line a run and JSON at the end.
 *
 *   node dist/bench/quality/gptq.js --rows "W4 g128 sym,W2 g64 asym" --seeds 0,1 [--set alpha=0.5,rounds=6] [--device cuda:0]
 *     [--json FILE [--errors]]
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { openSource } from '../../formats/canonical/source.js';
import { createRuntime, type Device } from '../../native/binding.js';
import { bundledCalibration, shareDirectory } from '../../src/calibrate/bundled.js';
import { loadCalibration } from '../../src/calibrate/text.js';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import { textPerplexity } from '../../src/eval/perplexity.js';
import { GPTQ_DEFAULTS, type GptqOptions } from '../../src/gptq/options.js';
import { gptqQuantizer } from '../../src/gptq/quantizer.js';
import { quantizeCheckpoint } from '../../src/quantize/run.js';
import { schemeFromOptions } from '../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../src/rtn/quantizer.js';

/** Of the unquantized model, and the reference's best column (act-order, mse) and RTN by row. */
const SOURCE_PPL = 24.8284;
const REFERENCE: Record<string, { gptq: number; rtn: number }> = {
  'W8 g128 sym': { gptq: 24.826, rtn: 24.822 },
  'W8 g128 asym': { gptq: 24.832, rtn: 24.826 },
  'W4 g128 sym': { gptq: 25.728, rtn: 26.493 },
  'W4 g128 asym': { gptq: 25.532, rtn: 26.28 },
  'W4 channel sym': { gptq: 25.859, rtn: 26.988 },
  'W4 channel asym': { gptq: 25.92, rtn: 26.861 },
  'W3 g128 sym': { gptq: 28.755, rtn: 35.505 },
  'W3 g128 asym': { gptq: 28.319, rtn: 33.138 },
  'W3 g32 sym': { gptq: 28.045, rtn: 31.369 },
  'W3 g32 asym': { gptq: 27.493, rtn: 29.5 },
  'W2 g64 sym': { gptq: 54.244, rtn: 263.0 },
  'W2 g64 asym': { gptq: 48.266, rtn: 147.8 },
  'W2 g32 sym': { gptq: 52.03, rtn: 173.4 },
  'W2 g32 asym': { gptq: 43.847, rtn: 92.11 },
};

const { values } = parseArgs({
  options: {
    rows: { type: 'string', default: Object.keys(REFERENCE).join(',') },
    seeds: { type: 'string', default: '0' },
    method: { type: 'string', default: 'gptq' },
    set: { type: 'string', default: '' },
    errors: { type: 'boolean', default: false },
    device: { type: 'string', default: 'cpu' },
    json: { type: 'string' },
  },
});

const model = path.join(shareDirectory(), 'tiny-llama');
const text = path.join(shareDirectory(), 'text', 'books-valid.txt');
const overrides = Object.fromEntries(
  values.set
    .split(',')
    .filter(Boolean)
    .map((pair) => pair.split('='))
    .map(([key, value]) => [
      key,
      Number.isNaN(Number(value)) ? (value === 'true' || value === 'false' ? value === 'true' : value) : Number(value),
    ]),
) as Partial<GptqOptions>;
const options: GptqOptions = { ...GPTQ_DEFAULTS, ...overrides };
const rt = createRuntime({ device: values.device as Device });
const METHODS = { rtn: rtnQuantizer, gptq: () => gptqQuantizer(options) };
const method = values.method as keyof typeof METHODS;
const quantizer = METHODS[method]();
/** Dequantizes what is read back: sources hand out tensors of the CPU. */
const host = rt.device === 'cpu' ? rt : createRuntime(2);
const encode = await openTokenizer(model);
const results: Record<string, unknown>[] = [];
for (const row of values.rows.split(',')) {
  const reference = REFERENCE[row];
  if (!reference) throw new Error(`no row is called ${row}`);
  const [width, group, sym] = row.split(' ') as [string, string, string];
  const scheme = schemeFromOptions({
    bits: Number(width.slice(1)),
    groupSize: group === 'channel' ? 'channel' : Number(group.slice(1)),
    asym: sym === 'asym',
  });
  const ppls: number[] = [];
  /** Relative errors of the modules, a seed each. */
  const errors: Record<string, number | null>[] = [];
  let seconds = 0;
  for (const seed of values.seeds.split(',').map(Number)) {
    const work = mkdtempSync(path.join(tmpdir(), 'lpq-quality-'));
    const started = performance.now();
    const { modules } = await quantizeCheckpoint([rt], {
      source: model,
      output: path.join(work, 'out'),
      scheme,
      rules: [],
      quantizer,
      calibration: !quantizer.statistics
        ? undefined
        : await loadCalibration(bundledCalibration(), encode, { samples: 128, length: 512, seed }),
      lmHead: false,
      options: {},
      version: 'bench',
    });
    errors.push(Object.fromEntries(modules.map(({ name, relativeError }) => [name, relativeError])));
    seconds += (performance.now() - started) / 1000;
    const source = openSource(path.join(work, 'out'), host);
    ppls.push((await textPerplexity(rt, source, text, { ctx: 512 })).ppl);
    source.close();
    rmSync(work, { recursive: true });
    if (!quantizer.statistics) break;
  }
  const ppl = ppls.reduce((a, b) => a + b) / ppls.length;
  const target = reference[method];
  const ratio = Math.log(ppl / SOURCE_PPL) / Math.log(target / SOURCE_PPL);
  const per = seconds / ppls.length;
  results.push({ row, ppl, ppls, reference: target, ratio, secondsPerRun: per, ...(values.errors && { errors }) });
  console.log(
    `${row.padEnd(16)} ${ppl.toFixed(3).padStart(8)}  reference ${target.toFixed(3).padStart(8)}  excess ratio ${ratio.toFixed(3)}  ${per.toFixed(1)} s  [${ppls.map((p) => p.toFixed(3)).join(' ')}]`,
  );
}
if (process.env.LPQ_PROFILE)
  console.log(
    Object.entries(rt.profile())
      .sort((a, b) => b[1].seconds - a[1].seconds)
      .slice(0, 12)
      .map(([op, { calls, seconds }]) => `${op} ${calls} ${seconds.toFixed(2)}`)
      .join('\n'),
  );
const low = results.filter(({ row }) => !(row as string).startsWith('W8')).map(({ ratio }) => ratio as number);
if (low.length > 0)
  console.log(`mean excess ratio, 4 bits and fewer: ${(low.reduce((a, b) => a + b) / low.length).toFixed(3)}`);
if (values.json)
  writeFileSync(
    values.json,
    `${JSON.stringify({ command: process.argv.slice(1).join(' '), isa: process.arch, options, results }, null, 2)}\n`,
  );
