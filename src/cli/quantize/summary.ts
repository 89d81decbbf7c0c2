import type { Evaluation } from '../../../formats/report/schema.js';
import { counted } from '../../core/words.js';
import type { Engine } from '../../engines/engine.js';
import { ENGINES } from '../../engines/index.js';
import { firstEngine } from '../../engines/settle.js';
import type { BlockLine, ModuleLine } from '../../quantize/events.js';
import type { QuantizeSummary } from '../../quantize/run.js';
import { mean } from '../../report/groups.js';
import { type Verdict, verdictOf, worstModules } from '../../report/verdict.js';
import { line } from '../terminal/terminal.js';
import { bytes, duration, significant } from '../terminal/units.js';
import type { QuantizeOptions } from './options.js';
import { schemesFrom } from './schemes.js';

/** A module, where every one is told. */
export function moduleLine(row: ModuleLine): string {
  return [
    row.name,
    row.scheme,
    `${row.bitsPerWeight.toFixed(3)} b/w`,
    ...(row.relativeError === null ? [] : [`error ${significant(row.relativeError)}`]),
    ...(row.damp === null ? [] : [`damp ${significant(row.damp)}`]),
    duration(row.seconds),
  ].join('  ');
}

/** What a block's modules come to. bitsPerWeight, relativeError: means over modules. */
export function blockFacts({ block, modules, done, of }: BlockLine) {
  const [worst] = worstModules(modules, 1);
  return {
    ...{ block, done, of },
    modules: modules.length,
    bitsPerWeight: mean(modules.map(({ bitsPerWeight }) => bitsPerWeight)),
    relativeError: meanError(modules),
    worst: worst ? { name: worst.name, relativeError: worst.relativeError } : null,
  };
}

/** The mean over modules of known error; null where there is none. */
function meanError(modules: readonly ModuleLine[]): number | null {
  return mean(modules.map(({ relativeError }) => relativeError));
}

/** The same in words. */
export function blockLine(line: BlockLine): string {
  const { block, done, of, modules, bitsPerWeight, relativeError, worst } = blockFacts(line);
  return [
    block === 'head' ? 'lm_head' : `block ${block}`,
    `${done} of ${of}`,
    counted(modules, 'module'),
    `${significant(bitsPerWeight, 4)} bits`,
    ...(relativeError === null ? [] : [`error ${significant(relativeError)}`]),
    ...(worst === null || modules === 1
      ? []
      : [`largest ${significant(worst.relativeError)} in ${worst.name.split('.').at(-1)}`]),
  ].join('  ');
}

/** What a run that has ended prints: its result as an event, and in words. */
export function finished(
  options: QuantizeOptions,
  { modules, bitsPerWeight, carried }: QuantizeSummary,
  { seconds, peak, evaluation }: { seconds: number; peak: number; evaluation: Evaluation | undefined },
): [data: object, text: string] {
  const { output, settings } = options;
  const verdict = verdictOf(evaluation ? [evaluation] : [], meanError(modules));
  const counts = { modules: modules.length, bitsPerWeight, carried, seconds };
  const first = line`quantized ${counted(modules.length, 'module')} to ${bitsPerWeight.toFixed(3)} bits per weight in ${output}, ${duration(seconds)}, peak memory ${bytes(peak)}\n`;
  return [
    { command: 'quantize', output, method: settings.method, ...counts, verdict, ...(evaluation && { evaluation }) },
    first + reached(options, modules, verdict, evaluation),
  ];
}

/** What was reached, and what to do next. */
function reached(
  { output, source, packTarget, reportAs, shard, settings, rules }: QuantizeOptions,
  modules: readonly ModuleLine[],
  { says, because }: Verdict,
  evaluation: Evaluation | undefined,
): string {
  const [worst] = worstModules(modules, 1);
  const quality = [
    line`quality  ${says}: ${because}\n`,
    ...(worst ? [line`worst    ${worst.name}, error ${significant(worst.relativeError)}\n`] : []),
  ];
  if (shard) return `${quality.join('')}next     lpq merge, when all shards exist\n`;
  // With --for what is told next is how to serve it.
  if (reportAs !== undefined) return quality.join('');
  const measure = line`lpq eval ${output} --text FILE --source ${source}`;
  const steps = [
    ...(evaluation ? [] : [`${measure}   what it costs`]),
    ...(packTarget === undefined
      ? [line`lpq pack ${output} --for ${engineFor({ settings, rules })} -o OUT   or another engine: docs/engines.md`]
      : [line`lpq verify ${output}-${packTarget} --against ${output}   proves the packed bytes`]),
  ];
  return `${quality.join('')}${steps.map((step, i) => `${i === 0 ? 'next    ' : '        '} ${step}\n`).join('')}`;
}

/** The name of the first engine that reads what these settings make. */
function engineFor({ settings, rules }: Pick<QuantizeOptions, 'settings' | 'rules'>): string {
  const { scheme, rules: others } = schemesFrom(settings, rules);
  const schemes = others.flatMap((rule) => (rule.scheme === 'skip' ? [] : [rule.scheme]));
  return (firstEngine(ENGINES, [scheme, ...schemes]) ?? (ENGINES.at(-1) as Engine)).name;
}
