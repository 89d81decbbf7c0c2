import type { SourceCheckpoint } from '../../../formats/canonical/source.js';
import type { SavedStatistics } from '../../../formats/statistics/read.js';
import { LpqError } from '../../core/error.js';
import { printGranularity } from '../../core/granularity.js';
import { counted } from '../../core/words.js';
import { openBlocks, unusedTensors } from '../../model/graph.js';
import { previewDecisions } from '../../pack/preview.js';
import { bitsPerWeight } from '../../quantize/grid.js';
import { linearsToQuantize, plannedModules } from '../../quantize/plan.js';
import { beyondPlan, isPlan, openOrPlan } from '../../quantize/planned-source.js';
import { requireGroupSizes, schemeOf } from '../../quantize/rules.js';
import { freeBytes, needsLine } from '../options/preflight.js';
import { type Column, columnOf, matrixRows, printMatrix, targetNames } from '../pack/target-matrix.js';
import type { Run } from '../run.js';
import { table } from '../terminal/table.js';
import { methodOf } from './methods.js';
import type { QuantizeFlags, QuantizeOptions } from './options.js';
import { schemesFrom } from './schemes.js';
import { timedNeeds } from './timed-needs.js';

/** What a run would do with one linear. */
interface PlannedModule {
  readonly name: string;
  readonly shape: readonly [number, number];
  readonly action: 'quantize' | 'skip' | 'refuse';
  readonly type?: string;
  readonly groupSize?: string;
  readonly bitsPerWeight?: number;
  readonly reason?: string;
}

/**
 * `quantize --dry-run`: every linear with its type and group, or why not, what targets would do with it, and what the run
 * takes. Throws the first refusal after the table.
 */
export async function printPlan(
  options: QuantizeOptions,
  flags: QuantizeFlags,
  statistics: SavedStatistics | undefined,
  run: Run,
): Promise<void> {
  const source = openOrPlan(options.source);
  try {
    if (isPlan(source)) tellPlan(source, run);
    const graph = openBlocks(source, options.settings.mtp);
    const { scheme, rules } = schemesFrom(options.settings, options.rules);
    const linears = linearsToQuantize(graph, options.settings.lmHead);
    let refusal = misfit(() => requireGroupSizes(linears, scheme, rules));
    // A table of hundreds of rows would hide it.
    if (refusal) run.report.warn(`${refusal.message}. ${refusal.hint}`);
    const modules = linears.map((linear): PlannedModule => {
      const { name, n, k } = linear;
      const base = { name, shape: [n, k] as const };
      try {
        const chosen = schemeOf(linear, scheme, rules);
        if (!chosen) return { ...base, action: 'skip', reason: 'a recipe rule skips it' };
        const groups = printGranularity(chosen.granularity);
        return {
          ...base,
          action: 'quantize',
          type: chosen.type.name,
          groupSize: groups,
          bitsPerWeight: bitsPerWeight(chosen, n, k),
        };
      } catch (error) {
        if (!(error instanceof LpqError)) throw error;
        refusal ??= error;
        return { ...base, action: 'refuse', reason: error.message };
      }
    });
    const columns = refusal || flags.pack === undefined ? [] : targetColumns(source, options, flags.pack, flags.tp);
    const names = modules.filter(({ action }) => action === 'quantize').map(({ name }) => name);
    const taken = new Set(names);
    const needs = refusal ? undefined : await timedNeeds(options, flags, statistics, run);
    const idle = options.rules.filter(({ match }) => !modules.some(({ name }) => match.test(name)));
    const unused = unusedTensors(source, graph);
    run.report.result(
      {
        command: 'quantize',
        dryRun: true,
        ...(isPlan(source) && { weights: 'none' }),
        architecture: graph.architecture,
        modules,
        unused,
        carried: [...source.names()].filter((name) => !taken.has(name.replace(/\.weight$/, ''))),
        ...(columns.length > 0 && { targets: matrixRows(columns, names) }),
        ...(needs && { estimate: { ...needs, free: freeBytes(options.output) ?? null } }),
        idleRules: idle.map(({ match }) => match.source),
      },
      table(
        ['module', 'shape', 'action', 'type', 'group', 'bits/weight', ''],
        modules.map((m) => [
          m.name,
          m.shape.join(' x '),
          m.action,
          m.type ?? '-',
          m.groupSize ?? '-',
          m.bitsPerWeight?.toFixed(3) ?? '-',
          m.reason ?? '',
        ]),
      ) +
        totals(modules) +
        (columns.length > 0 ? `\n${printMatrix(columns, names)}` : '') +
        (needs ? `\n${needsLine(needs, freeBytes(options.output))}\n` : ''),
    );
    for (const { match } of idle) run.report.warn(`the rule ${match} matches no module`);
    if (refusal) throw refusal;
  } finally {
    source.close();
  }
}

/** The refusal that a check ends in. */
function misfit(check: () => void): LpqError | undefined {
  try {
    check();
  } catch (error) {
    if (error instanceof LpqError) return error;
    throw error;
  }
  return undefined;
}

/** What each target would do with the modules once they are quantized. */
function targetColumns(source: SourceCheckpoint, options: QuantizeOptions, given: string, ranks = 1): Column[] {
  const { settings, rules } = options;
  const modules = plannedModules(source, {
    ...schemesFrom(settings, rules),
    lmHead: settings.lmHead,
    codes: methodOf(settings).codes,
  });
  const planned = { dir: options.source, config: source.config, modules };
  return targetNames(given).map((target) => columnOf(target, () => previewDecisions(planned, target, ranks)));
}

/** What a plan without weights does not know. */
function tellPlan(source: SourceCheckpoint, run: Run): void {
  const beyond = beyondPlan(source).length;
  const rest = beyond > 0 ? `; ${counted(beyond, 'tensor')} of its index, outside the language model, not counted` : '';
  run.report.warn(`${source.dir} holds no weights: the plan follows its config.json${rest}`, { beyond });
}

function totals(modules: readonly PlannedModule[]): string {
  let [bits, weights] = [0, 0];
  for (const { bitsPerWeight: each, shape } of modules) {
    if (each === undefined) continue;
    bits += each * shape[0] * shape[1];
    weights += shape[0] * shape[1];
  }
  const number = (action: string) => modules.filter((module) => module.action === action).length;
  const mean = weights > 0 ? `, ${(bits / weights).toFixed(3)} bits per weight` : '';
  return `\n${number('quantize')} to quantize${mean}; ${number('skip')} skipped, ${number('refuse')} refused\n`;
}
