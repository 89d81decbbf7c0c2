import { SourceCheckpoint } from '../../formats/canonical/source.js';
import { LpqError } from '../core/error.js';
import { printGranularity } from '../core/granularity.js';
import { openModel, unusedTensors } from '../model/graph.js';
import type { LinearRef, ModelGraph } from '../model/program.js';
import { bitsPerWeight } from '../quantize/grid.js';
import { schemeOf } from '../quantize/rules.js';
import type { QuantizeOptions } from './quantize.js';
import type { Run } from './run.js';
import { schemesFrom } from './schemes.js';
import { table } from './table.js';

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

/** `quantize --dry-run`: every linear with its type and group, or why not. Throws the first refusal after the table. */
export function printPlan(options: QuantizeOptions, run: Run): void {
  const source = SourceCheckpoint.open(options.source);
  try {
    const graph = openModel(source);
    const { scheme, rules } = schemesFrom(options.settings, options.rules);
    let refusal: LpqError | undefined;
    const modules = linearsOf(graph, options.settings.lmHead).map((linear): PlannedModule => {
      const { name, n, k } = linear;
      const base = { name, shape: [n, k] as const };
      try {
        const chosen = schemeOf(linear, scheme, rules);
        if (!chosen) return { ...base, action: 'skip', reason: 'a rule of the recipe leaves it as it is' };
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
    const idle = options.rules.filter(({ match }) => !modules.some(({ name }) => match.test(name)));
    const unused = unusedTensors(source, graph);
    run.report.result(
      {
        command: 'quantize',
        dryRun: true,
        architecture: graph.architecture,
        modules,
        unused,
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
      ) + totals(modules),
    );
    for (const { match } of idle) run.report.warn(`the rule ${match} matches no module`);
    if (refusal) throw refusal;
  } finally {
    source.close();
  }
}

function linearsOf(graph: ModelGraph, lmHead: boolean): LinearRef[] {
  const linears = graph.blocks.flatMap(({ stages }) =>
    stages.flatMap(({ feeds }) => feeds.flatMap((feed) => feed.linears)),
  );
  if (lmHead && graph.head.tied)
    throw new LpqError('LPQ_USAGE', 'lm_head shares its weight with the embedding and cannot be quantized alone', {
      hint: 'Leave out --lm-head for this model.',
    });
  return lmHead ? [...linears, graph.head] : linears;
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
