/**
 * Perplexity of models whose types were chosen for a mean number of bits, by what the choice is measured by; GPTQ afterwards.
 *
 *   node dist/bench/quality/choose.js [--model DIR] [--among 2:128,3:128,4:128,5:128,6:128,8:128] [--budgets 2.5,3,3.5]
 *     [--by loss,error] [--seeds 0] [--calib FILE] [--samples 128] [--text FILE] [--threads N] [--json FILE]
 *
 * --calib: the calibration text (the bundled books). --text: what perplexity is taken on (books-valid), ctx 512, all of it; `unused`: 32
 * windows of the calibration text that no run was given.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { openSource, SourceCheckpoint } from '../../formats/canonical/source.js';
import { createRuntime } from '../../native/binding.js';
import { bundledCalibration, shareDirectory } from '../../src/calibrate/bundled.js';
import { loadCalibration } from '../../src/calibrate/text.js';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import { perplexity, textPerplexity } from '../../src/eval/perplexity.js';
import { GPTQ_DEFAULTS } from '../../src/gptq/options.js';
import { gptqQuantizer } from '../../src/gptq/quantizer.js';
import { openModel, planSource } from '../../src/model/graph.js';
import { allocate } from '../../src/quantize/allocate.js';
import { measureDivergences } from '../../src/quantize/divergences.js';
import { planQuantization } from '../../src/quantize/plan.js';
import { quantizeCheckpoint } from '../../src/quantize/run.js';
import { schemeFromOptions } from '../../src/quantize/scheme.js';
import { unitCosts, unitsOf } from '../../src/quantize/sensitivity.js';
import { SourceView } from '../../src/quantize/source-view.js';
import { measureLosses } from '../../src/tune/choice/losses.js';
import { processorName } from '../machine.js';

const [LENGTH, MEASURED, UNUSED, REFERENCE] = [512, 16, 32, 3];

const { values } = parseArgs({
  options: {
    model: { type: 'string', default: path.join(shareDirectory(), 'tiny-llama') },
    among: { type: 'string', default: '2:128,3:128,4:128,5:128,6:128,8:128' },
    budgets: { type: 'string', default: '2.5,3,3.5' },
    by: { type: 'string', default: 'loss,error' },
    seeds: { type: 'string', default: '0' },
    calib: { type: 'string', default: bundledCalibration() },
    samples: { type: 'string', default: '128' },
    text: { type: 'string', default: path.join(shareDirectory(), 'text', 'books-valid.txt') },
    threads: { type: 'string', default: '2' },
    json: { type: 'string' },
  },
});

const { model, calib, text } = values;
const [samples, threads] = [Number(values.samples), Number(values.threads)];
/** As `lpq quantize` computes, and as `lpq eval` does. */
const [solving, rt] = [createRuntime({ threads, products: 'bf16' }), createRuntime({ threads })];
const schemes = values.among.split(',').map((item) => {
  const [type = '', group] = item.split(':');
  const groupSize = group === undefined ? {} : { groupSize: group };
  return schemeFromOptions({ ...(/^\d$/.test(type) ? { bits: type } : { dtype: type }), ...groupSize });
});
const reference = Math.max(
  schemes.findIndex(({ type }) => type.bits === REFERENCE),
  0,
);
const source = new SourceView(SourceCheckpoint.open(model));
const graph = openModel(source);
const plan = planQuantization(graph, { scheme: schemes[reference]!, rules: [], lmHead: false });
const units = unitsOf(graph, new Set(plan.keys()));
const costs = units.map((unit) => unitCosts(unit, schemes));
const weights = [...plan.values()].reduce((sum, { linear: { n, k } }) => sum + n * k, 0);
const encode = await openTokenizer(model);
const results: object[] = [];
for (const seed of values.seeds.split(',').map(Number)) {
  const all = await loadCalibration(calib, encode, { samples: samples + UNUSED, length: LENGTH, seed });
  const sequences = all.sequences.slice(0, samples);
  const few = sequences.slice(0, MEASURED);
  for (const by of values.by.split(',')) {
    const started = performance.now();
    const asked = { source, graph, units, schemes, sequences: few };
    const errors =
      by === 'loss'
        ? await measureLosses({ rt: solving, plan: planSource(source), ...asked })
        : await measureDivergences({ rts: [solving], reference, ...asked });
    const seconds = (performance.now() - started) / 1000;
    for (const budget of values.budgets.split(',').map(Number)) {
      const choices = units.map((_, u) =>
        schemes.map((__, i) => ({ value: i, cost: costs[u]![i]!, error: errors[u]![i]! })),
      );
      const chosen = allocate(choices, budget * weights);
      if (!chosen) throw new RangeError(`--budgets ${budget}: less than the smallest of --among`);
      const rules = units.map(({ linears }, u) => {
        const names = new Set(linears.map(({ name }) => name));
        return { match: { test: (name: string) => names.has(name) } as RegExp, scheme: schemes[chosen[u]!.value]! };
      });
      const work = mkdtempSync(path.join(tmpdir(), 'lpq-choose-'));
      const output = path.join(work, 'out');
      const quantizer = gptqQuantizer(GPTQ_DEFAULTS);
      const calibration = { ...all, sequences, tokens: samples * LENGTH };
      const scheme = schemes[reference]!;
      const request = { source: model, output, scheme, rules, quantizer, calibration, lmHead: false };
      await quantizeCheckpoint([solving], { ...request, options: {}, version: 'bench' }, {});
      const made = openSource(output, rt);
      const unused = (await perplexity(rt, made, openModel(made), all.sequences.slice(samples), { ctx: LENGTH })).ppl;
      const { ppl } = await textPerplexity(rt, made, text, { ctx: LENGTH });
      made.close();
      rmSync(work, { recursive: true });
      const types = chosen.map(({ value }) => values.among.split(',')[value]).join(' ');
      const bits = chosen.reduce((sum, { cost }) => sum + cost, 0) / weights;
      const predicted = chosen.reduce((sum, { error }) => sum + error, 0);
      results.push({ seed, by, budget, bits, unused, ppl, predicted, seconds, types });
      console.log(`seed ${seed} ${by} ${budget}: unused ${unused.toFixed(3)} ppl ${ppl.toFixed(3)} ${types}`);
    }
  }
}
if (values.json) {
  const command = `node dist/bench/quality/choose.js ${process.argv.slice(2).join(' ')}`;
  writeFileSync(values.json, `${JSON.stringify({ command, machine: processorName(), results }, null, 2)}\n`);
}
