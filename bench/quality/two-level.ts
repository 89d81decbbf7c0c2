/**
 * Perplexity of two-level grids on tiny-llama beside scales of groups of their own, over seeds of the calibration windows: excess nats over
 * the unquantized model, weights alone (W4A16) and, of two levels, multiplied by int8 activations as packed for w4a8 (W4A8).
 *
 *   node dist/bench/quality/two-level.js [--seeds 16] [--json FILE]
 *
 * Positive scales and W4A8, whose products take long on a CPU, are measured for the first two seeds.
 */
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import { parseArgs } from 'node:util';
import { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { openSource } from '../../formats/canonical/source.js';
import { createRuntime } from '../../native/binding.js';
import { artifactSource } from '../../src/artifact/open.js';
import { bundledCalibration, shareDirectory } from '../../src/calibrate/bundled.js';
import { loadCalibration } from '../../src/calibrate/text.js';
import { openTokenizer } from '../../src/calibrate/tokenizer.js';
import { textPerplexity } from '../../src/eval/perplexity.js';
import { GPTQ_DEFAULTS } from '../../src/gptq/options.js';
import { gptqQuantizer } from '../../src/gptq/quantizer.js';
import type { WeightSource } from '../../src/model/source.js';
import { packCheckpoint } from '../../src/pack/pack-checkpoint.js';
import type { Quantizer } from '../../src/quantize/quantizer.js';
import { quantizeCheckpoint } from '../../src/quantize/run.js';
import { schemeFromOptions } from '../../src/quantize/scheme.js';
import { rtnQuantizer } from '../../src/rtn/quantizer.js';
import { processorName } from '../machine.js';

const { values } = parseArgs({
  options: { seeds: { type: 'string', default: '16' }, json: { type: 'string' } },
});
/** Seeds of what takes long. */
const FEW = 2;
const gptq = (bothSigns: boolean) => gptqQuantizer({ ...GPTQ_DEFAULTS, bothSigns });
interface Row {
  readonly name: string;
  readonly quantizer: Quantizer;
  readonly groupScales: 'free' | 'integer';
  readonly few?: true;
}

const ROWS: readonly Row[] = [
  { name: 'rtn', quantizer: rtnQuantizer(), groupScales: 'free' },
  { name: 'rtn two-level', quantizer: rtnQuantizer(), groupScales: 'integer' },
  { name: 'gptq', quantizer: gptq(true), groupScales: 'free' },
  { name: 'gptq two-level', quantizer: gptq(true), groupScales: 'integer' },
  { name: 'gptq positive', quantizer: gptq(false), groupScales: 'free', few: true },
  { name: 'gptq positive two-level', quantizer: gptq(false), groupScales: 'integer', few: true },
];

const model = path.join(shareDirectory(), 'tiny-llama');
const text = path.join(shareDirectory(), 'text', 'books-valid.txt');
const rt = createRuntime();
const encode = await openTokenizer(model);
const work = mkdtempSync(path.join(tmpdir(), 'lpq-two-level-'));

async function nats(source: WeightSource & { close(): void }): Promise<number> {
  try {
    return Math.log((await textPerplexity(rt, source, text, { ctx: 512 })).ppl);
  } finally {
    source.close();
  }
}

interface Run {
  readonly seed: number;
  readonly excess: number;
  /** Mean over the modules. */
  readonly relativeError: number | null;
  /** Multiplied by int8 activations. */
  readonly w4a8?: number;
}

const base = await nats(openSource(model, rt));

async function measure({ quantizer, groupScales }: Row, seed: number): Promise<Run> {
  const output = path.join(work, 'quantized');
  const calibration = quantizer.statistics
    ? await loadCalibration(bundledCalibration(), encode, { samples: 128, length: 512, seed })
    : undefined;
  const scheme = schemeFromOptions({ bits: 4, groupSize: 128, groupScales });
  const request = { source: model, output, scheme, rules: [], quantizer, calibration, lmHead: false };
  const { modules } = await quantizeCheckpoint([rt], { ...request, options: {}, version: 'bench' });
  const errors = modules.flatMap((module) => module.relativeError ?? []);
  const relativeError = errors.length > 0 ? errors.reduce((a, b) => a + b) / errors.length : null;
  const excess = (await nats(openSource(output, rt))) - base;
  let w4a8: number | undefined;
  if (groupScales === 'integer' && seed < FEW) {
    const packed = path.join(work, 'packed');
    const input = CanonicalCheckpoint.open(output);
    await packCheckpoint({ input, target: 'w4a8', output: packed, runtime: rt });
    input.close();
    w4a8 = (await nats(artifactSource(packed, rt, true, true))) - base;
    rmSync(packed, { recursive: true });
  }
  rmSync(output, { recursive: true });
  return { seed, excess, relativeError, ...(w4a8 !== undefined && { w4a8 }) };
}

const mean = (list: readonly number[]): number => list.reduce((a, b) => a + b, 0) / list.length;
const standardError = (list: readonly number[]): number =>
  Math.sqrt(mean(list.map((value) => (value - mean(list)) ** 2)) / Math.max(1, list.length - 1));

const runs = new Map<string, Run[]>(ROWS.map(({ name }) => [name, []]));
for (let seed = 0; seed < Number(values.seeds); seed++)
  for (const row of ROWS) {
    if (seed >= (row.quantizer.statistics ? (row.few ? FEW : seed + 1) : 1)) continue;
    const run = await measure(row, seed);
    runs.get(row.name)?.push(run);
    console.log(row.name.padEnd(24), JSON.stringify(run));
  }
rmSync(work, { recursive: true });

const rows = ROWS.map(({ name }) => {
  const own = runs.get(name) as Run[];
  const free = runs.get(name.replace(' two-level', '')) as Run[];
  const [excess, reference] = [own, free].map((list) => list.map((run) => run.excess)) as [number[], number[]];
  const errors = own.flatMap((run) => run.relativeError ?? []);
  const gaps = own.flatMap(({ w4a8, excess: weights }) => (w4a8 === undefined ? [] : [w4a8 - weights]));
  return {
    row: name,
    seeds: own.length,
    excess: mean(excess),
    standardError: standardError(excess),
    ...(errors.length > 0 && { relativeError: mean(errors) }),
    ...(own !== free && {
      overFree: mean(excess) / mean(reference) - 1,
      overFreeStandardError: standardError(excess.map((value, i) => value - reference[i]!)) / mean(reference),
      w4a8OverW4a16: { mean: mean(gaps), largest: Math.max(...gaps) },
    }),
    runs: own,
  };
});
for (const { runs: _, ...row } of rows) console.log(JSON.stringify(row));
if (values.json) {
  const command = `node dist/bench/quality/two-level.js --seeds ${values.seeds}`;
  const what =
    'Two-level grids on tiny-llama, 4 bits in groups of 128, symmetric: nats over the unquantized model on books-valid.txt, ctx 512; 128 windows of 512 tokens a seed; overFree: by how much more than with f16 scales of groups of their own.';
  const date = new Date().toISOString().slice(0, 10);
  const record = { date, what, command, machine: processorName(), unquantized: Math.exp(base), rows };
  writeFileSync(values.json, `${JSON.stringify(record, null, 2)}\n`);
}
