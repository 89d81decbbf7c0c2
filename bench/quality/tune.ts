/**
 * Perplexity of a model with trained rounding against the figures of another GPTQ (references.ts; 128 windows of 512 tokens of the bundled
 * books, ctx 512). Settings are chosen by `unused`, windows of the calibration text that no run was given; `valid` is the table's text.
 *
 *   node dist/bench/quality/tune.js [--model DIR] --rows "W4 g128 sym,W2 g64 asym" --seeds 0,1 [--steps 200] [--scales 300]
 *     [--base rtn] [--set rate=2,leak=0.5] [--set-scales rate=0.05] [--text FILE] [--threads N] [--choose] [--json FILE]
 *
 * Rows mxfp4 and nvfp4 are of those types; 'mxfp4 a4' and 'nvfp4 a4' round inputs to them, too. --base: the method that is trained (gptq); with --steps 0 it stays as it is.
 * --choose: perplexity on `unused` alone. --scales: steps on the scales, on fresh windows of the calibration text; all of it, but with
 * --choose for `unused`, which then is what no run was given. --text: perplexity of the first 60,000 bytes of another text, too.
 */
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { openSource, SourceCheckpoint } from '../../formats/canonical/source.js';
import { createRuntime } from '../../native/binding.js';
import { bundledCalibration, shareDirectory } from '../../src/calibrate/bundled.js';
import { loadCalibration } from '../../src/calibrate/text.js';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import type { InputTypeName } from '../../src/core/input-type.js';
import { perplexity, textPerplexity } from '../../src/eval/perplexity.js';
import { GPTQ_DEFAULTS } from '../../src/gptq/options.js';
import { gptqQuantizer } from '../../src/gptq/quantizer.js';
import { openModel } from '../../src/model/graph.js';
import { planQuantization } from '../../src/quantize/plan.js';
import type { Quantizer } from '../../src/quantize/quantizer.js';
import { observeRanges } from '../../src/quantize/ranges.js';
import { roundedInputs } from '../../src/quantize/rounded-inputs.js';
import { type ModuleLine, type QuantizeRequest, quantizeCheckpoint } from '../../src/quantize/run.js';
import { schemeFromOptions } from '../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../src/rtn/quantizer.js';
import { TUNE_DEFAULTS, type TuneOptions } from '../../src/tune/options.js';
import { tuned } from '../../src/tune/quantizer.js';
import { furtherSequences, SCALE_DEFAULTS, type ScaleOptions } from '../../src/tune/scales/options.js';
import { withTrainedScales } from '../../src/tune/scales/quantizer.js';
import { processorName } from '../machine.js';
import { REFERENCES } from './references.js';

const [SAMPLES, LENGTH, CTX, UNUSED, OTHER_BYTES] = [128, 512, 512, 128, 60_000];

const { values } = parseArgs({
  options: {
    model: { type: 'string', default: path.join(shareDirectory(), 'tiny-llama') },
    rows: { type: 'string' },
    base: { type: 'string', default: 'gptq' },
    seeds: { type: 'string', default: '0' },
    steps: { type: 'string', default: '200' },
    scales: { type: 'string', default: '0' },
    set: { type: 'string', default: '' },
    'set-scales': { type: 'string', default: '' },
    text: { type: 'string' },
    threads: { type: 'string', default: '2' },
    choose: { type: 'boolean', default: false },
    json: { type: 'string' },
  },
});

const { model } = values;
/** Models are known by the name of their directory; others get no shares. */
const known = REFERENCES[path.basename(path.resolve(model))];
const threads = Number(values.threads);
/** As `lpq quantize` computes, and as `lpq eval` does. */
const [solving, rt] = [createRuntime({ threads, products: 'bf16' }), createRuntime({ threads })];
const encode = await openTokenizer(model);
const pairs = (text: string) =>
  Object.fromEntries(
    text
      .split(',')
      .filter(Boolean)
      .map((pair) => pair.split('=') as [string, string])
      .map(([k, v]) => [k, Number.isNaN(Number(v)) ? v : Number(v)]),
  );
const set = pairs(values.set) as Partial<TuneOptions>;
const setScales = pairs(values['set-scales']) as Partial<ScaleOptions>;

const FLOATS = /^(mxfp4|nvfp4)( a4)?$/;

/** What linears read in a row of 4-bit activations, and the ranges that NVFP4's scales are of. */
async function inputsOf(row: string, sequences: readonly Int32Array[]): Promise<Partial<QuantizeRequest>> {
  const [, type, rounds] = FLOATS.exec(row) ?? [];
  if (rounds === undefined) return {};
  const source = SourceCheckpoint.open(model);
  try {
    const graph = openModel(source);
    const plan = planQuantization(graph, { scheme: schemeOf(row), rules: [], lmHead: false });
    const ranges = await observeRanges(rt, source, graph, { sequences, cache: false, inputs: new Set(plan.keys()) });
    return { ranges, activations: roundedInputs(plan, type as InputTypeName, ranges.inputs) };
  } finally {
    source.close();
  }
}

function schemeOf(row: string) {
  const float = FLOATS.exec(row)?.[1];
  if (float) return schemeFromOptions({ dtype: float });
  const [width, group, grid] = row.split(' ') as [string, string, string];
  return schemeFromOptions({ bits: Number(width.slice(1)), groupSize: Number(group.slice(1)), asym: grid === 'asym' });
}

const BASES: Readonly<Record<string, () => Quantizer>> = {
  gptq: () => gptqQuantizer(GPTQ_DEFAULTS),
  // Blocks are trained on what the unquantized model computes.
  rtn: () => ({ ...rtnQuantizer(), statistics: true, original: true }),
};

/** The quantizer of the options. */
function quantizerOf(seed: number): Quantizer {
  const base = BASES[values.base]?.();
  if (!base) throw new RangeError(`--base ${values.base}: one of ${Object.keys(BASES).join(', ')}`);
  const [steps, scales] = [Number(values.steps), Number(values.scales)];
  const trained = steps > 0 ? tuned(base, { ...TUNE_DEFAULTS, ...set, steps, seed }) : base;
  return scales > 0 ? withTrainedScales(trained, { ...SCALE_DEFAULTS, ...setScales, steps: scales, seed }) : trained;
}

/** The text for --text, cut where a character ends, as a file of its own. */
function otherText(work: string): string | undefined {
  if (values.text === undefined) return undefined;
  const file = path.join(work, 'other.txt');
  writeFileSync(file, new TextDecoder().decode(readFileSync(values.text).subarray(0, OTHER_BYTES), { stream: true }));
  return file;
}

async function run(row: string, seed: number) {
  const work = mkdtempSync(path.join(tmpdir(), 'lpq-tune-'));
  const all = await loadCalibration(bundledCalibration(), encode, {
    ...{ samples: SAMPLES + UNUSED, length: LENGTH, seed },
    further: furtherSequences({ tuneScales: Number(values.scales), seqLen: LENGTH }),
  });
  const sequences = all.sequences.slice(0, SAMPLES);
  const unseen = all.sequences.slice(SAMPLES);
  const further = [...(values.choose ? [] : unseen), ...(all.further ?? [])];
  const started = performance.now();
  const lines: ModuleLine[] = [];
  const { scaleTraining } = await quantizeCheckpoint(
    [solving],
    {
      source: model,
      output: path.join(work, 'out'),
      scheme: schemeOf(row),
      rules: [],
      quantizer: quantizerOf(seed),
      calibration: { ...all, sequences, further, tokens: SAMPLES * LENGTH },
      lmHead: false,
      options: {},
      version: 'bench',
      ...(await inputsOf(row, sequences)),
    },
    { onModule: (line) => lines.push(line) },
  );
  const seconds = (performance.now() - started) / 1000;
  const source = openSource(path.join(work, 'out'), rt);
  const unused = await perplexity(rt, source, openModel(source), unseen, { ctx: CTX });
  const file = path.join(shareDirectory(), 'text', 'books-valid.txt');
  const valid = values.choose ? undefined : (await textPerplexity(rt, source, file, { ctx: CTX })).ppl;
  const second = otherText(work);
  const other = second === undefined ? undefined : (await textPerplexity(rt, source, second, { ctx: CTX })).ppl;
  source.close();
  rmSync(work, { recursive: true });
  const blocks = [...new Set(lines.map(({ measures }) => JSON.stringify(measures?.tune)))]
    .filter((text) => text !== undefined)
    .map((text) => JSON.parse(text) as { kept: number; curve: { step: number; loss: number }[] })
    .map(({ kept, curve, ...rest }) => ({
      ...rest,
      kept,
      start: curve[0]?.loss,
      loss: curve.find(({ step }) => step === kept)?.loss,
    }));
  const texts = { unused: unused.ppl, ...(valid !== undefined && { valid }), ...(other !== undefined && { other }) };
  const scales = scaleTraining && {
    ...{ kept: scaleTraining.kept, start: scaleTraining.curve[0]?.loss },
    loss: scaleTraining.curve.find(({ step }) => step === scaleTraining.kept)?.loss,
  };
  return { seed, seconds, ...texts, blocks, ...(scales && { scales }) };
}

const results: object[] = [];
const shares: number[] = [];
for (const row of values.rows?.split(',') ?? Object.keys(known?.rows ?? {})) {
  for (const seed of values.seeds.split(',').map(Number)) {
    const made = await run(row, seed);
    const reference = known?.rows[row];
    const share =
      made.valid !== undefined && known !== undefined && reference !== undefined
        ? Math.log(made.valid / known.unquantized) / Math.log(reference / known.unquantized)
        : undefined;
    if (share !== undefined) shares.push(share);
    results.push({ row, ...made, ...(share !== undefined && { share }) });
    console.log(
      `${row.padEnd(13)} seed ${seed} ${values.set} unused ${made.unused.toFixed(3)} valid ${made.valid?.toFixed(3)} other ${made.other?.toFixed(3)} share ${share?.toFixed(3)} ${made.seconds.toFixed(1)} s` +
        ` ${made.blocks.map(({ start, loss, kept }) => `${((loss as number) / (start as number)).toFixed(3)}@${kept}`).join(' ')}`,
    );
  }
}
if (shares.length > 0) console.log(`mean share ${(shares.reduce((a, b) => a + b) / shares.length).toFixed(3)}`);
if (values.json) {
  const command = `node dist/bench/quality/tune.js ${process.argv.slice(2).join(' ')}`;
  writeFileSync(
    values.json,
    `${JSON.stringify({ command, machine: processorName(), set, setScales, results }, null, 2)}\n`,
  );
}
