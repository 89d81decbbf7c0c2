// Draws tokens a second over sequences and over contexts from what lpq bench model --results wrote, after npm run build:
// node scripts/plot-model.mjs RESULTS.json [--output PREFIX] [--context N] [--m N] makes PREFIX-m.svg and PREFIX-context.svg.
import { readFileSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { parseArgs } from 'node:util';
import { modelPlots } from '../dist/bench/model/plot.js';
import { modelBenchSchema } from '../dist/bench/model/schema.js';

const root = path.dirname(path.dirname(fileURLToPath(import.meta.url)));

/** The files, by default beside docs/, and what they should hold. */
export function plotsOf(results, { output, ...choice } = {}) {
  const bench = modelBenchSchema.parse(JSON.parse(readFileSync(results, 'utf8')));
  const prefix = output ?? path.join(root, 'docs', `model-${bench.shape}`);
  return modelPlots(bench, choice).map(({ over, svg }) => ({ file: `${prefix}-${over}.svg`, svg }));
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
  const text = { type: 'string' };
  const { values, positionals } = parseArgs({
    options: { output: text, context: text, m: text },
    allowPositionals: true,
  });
  if (positionals.length !== 1) throw new Error('Name one file that lpq bench model --results wrote.');
  const whole = (name) => (values[name] === undefined ? {} : { [name]: Number(values[name]) });
  const output = values.output === undefined ? {} : { output: values.output };
  for (const { file, svg } of plotsOf(positionals[0], { ...output, ...whole('context'), ...whole('m') })) {
    writeFileSync(file, svg);
    console.log(path.relative(process.cwd(), file));
  }
}
