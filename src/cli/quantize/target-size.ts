import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import type { NativeRuntime } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { openBlocks } from '../../model/graph.js';
import { allocate, type Choice } from '../../quantize/allocate.js';
import { outputBytes } from '../../quantize/estimate.js';
import { bitsPerWeight } from '../../quantize/grid.js';
import { influenceOf } from '../../quantize/influence.js';
import { plannedModules, planQuantization } from '../../quantize/plan.js';
import { type Measured, measureUnits, unitsOf } from '../../quantize/sensitivity.js';
import { SourceView } from '../../quantize/source-view.js';
import type { Run } from '../run.js';
import { bytes, significant } from '../terminal/units.js';
import { calibrate } from './calibration.js';
import { methodOf } from './methods.js';
import type { QuantizeOptions } from './options.js';
import type { RecipeRule } from './recipe.js';
import { schemeFrom, schemesFrom } from './schemes.js';

/** What the quantized checkpoint shall come to: bytes of the whole directory, or bits of a quantized weight in the mean. */
export type SizeTarget =
  | { readonly kind: 'size'; readonly bytes: number }
  | { readonly kind: 'bpw'; readonly bits: number };

/** Widths to choose among; one bit is no choice that a search should make unasked. */
const WIDTHS = [2, 3, 4, 5, 6, 7, 8] as const;
/** The width that a unit alone is rounded to, to see what it does to the predictions. */
const REFERENCE = 3;
/** Calibration sequences that errors are measured with: enough to rank units by. */
const SEQUENCES = 16;

/**
 * Settings and rules that meet a target: every unit (what an engine fuses) gets the bits that make the sum of the measured
 * relative errors smallest. The recipe's own rules stay before them. Throws LPQ_USAGE where no choice is small enough.
 */
export async function solveTarget(
  options: QuantizeOptions,
  target: SizeTarget,
  rts: readonly NativeRuntime[],
  run: Run,
): Promise<QuantizeOptions> {
  const checkpoint = SourceCheckpoint.open(options.source);
  try {
    const source = new SourceView(checkpoint);
    const graph = openBlocks(source, options.settings.mtp);
    const { lmHead } = options.settings;
    const any = schemesFrom({ ...options.settings, bits: 4 }, options.rules);
    const plan = planQuantization(graph, { ...any, lmHead });
    const fixed = new Set([...plan.keys()].filter((name) => options.rules.some(({ match }) => match.test(name))));
    const units = unitsOf(graph, new Set([...plan.keys()].filter((name) => !fixed.has(name))));
    if (units.length === 0) throw new LpqError('LPQ_USAGE', "the recipe's rules fix the bits of every module");
    const schemes = WIDTHS.map((bits) => schemeFrom({ ...options.settings, bits }));
    const samples = Math.min(SEQUENCES, options.settings.samples);
    const text = await calibrate({ ...options, settings: { ...options.settings, samples } }, run);
    const task = run.report.task('measure', plan.size - fixed.size);
    const errors = await measureUnits(rts, source, graph, units, schemes, text, (done, name) => {
      run.interrupt.check();
      task.update(done, name);
    });
    const middle = WIDTHS.indexOf(REFERENCE);
    const influence = await influenceOf(rts[0]!, source, graph, units, schemes[middle]!, text.sequences, () =>
      run.interrupt.check(),
    );
    task.end();
    // Near its minimum the divergence is quadratic in what changes the outputs, so linear in their squared error.
    const measured = errors.map((each, i) => {
      const factor = (influence[i] as number) / Math.max(each.errors[middle] as number, Number.MIN_VALUE);
      return { ...each, errors: each.errors.map((error) => error * factor) };
    });
    const allowed = await allowedWidths(options, checkpoint);
    const rest = [...plan].reduce(
      (sum, [name, { linear, scheme }]) =>
        sum + (fixed.has(name) ? bitsPerWeight(scheme, linear.n, linear.k) * linear.n * linear.k : 0),
      0,
    );
    const weights = [...plan.values()].reduce((sum, { linear }) => sum + linear.n * linear.k, 0);
    const solved = await search(options, target, { measured, allowed, rest, weights, checkpoint });
    const { chosen, size } = solved;
    const bpw = (chosen.reduce((sum, { cost }) => sum + cost, 0) + rest) / weights;
    const error = chosen.reduce((sum, choice) => sum + choice.error, 0);
    const uniform = WIDTHS.map((bits, i) => ({
      bits,
      cost: measured.reduce((sum, { costs }) => sum + (costs[i] as number), rest) / weights,
      error: measured.reduce((sum, { errors }) => sum + (errors[i] as number), 0),
    })).findLast(({ cost }) => cost <= bpw + 1e-9);
    const counts = WIDTHS.map((bits) => [bits, chosen.filter(({ value }) => value === bits).length] as const).filter(
      ([, count]) => count > 0,
    );
    run.report.event(
      'target',
      {
        ...target,
        bitsPerWeight: bpw,
        output: size,
        error,
        uniform: uniform ?? null,
        units: units.map(({ linears }, i) => ({ modules: linears.map(({ name }) => name), bits: chosen[i]?.value })),
      },
      `chose ${counts.map(([bits, count]) => `${bits} bits for ${count}`).join(', ')} of ${units.length} groups of modules: ${bpw.toFixed(3)} bits per weight, ${bytes(size)}; predicted divergence ${significant(error)} nats per token${uniform ? ` (${significant(uniform.error)} with ${uniform.bits} bits everywhere)` : ''}`,
    );
    return solved.options;
  } finally {
    checkpoint.close();
  }
}

interface Facts {
  readonly measured: readonly Measured[];
  readonly allowed: ReadonlyMap<string, ReadonlySet<number>>;
  /** Bits of modules whose scheme the recipe fixes. */
  readonly rest: number;
  readonly weights: number;
  readonly checkpoint: SourceCheckpoint;
}

async function search(
  options: QuantizeOptions,
  target: SizeTarget,
  facts: Facts,
): Promise<{ options: QuantizeOptions; chosen: Choice<number>[]; size: number }> {
  const { measured, allowed, rest, weights, checkpoint } = facts;
  const units = measured.map(({ unit, costs, errors }) => {
    const choices = WIDTHS.map((bits, i) => ({ value: bits, cost: costs[i] as number, error: errors[i] as number }));
    const taken = choices.filter(({ value }) =>
      unit.linears.every(({ name }) => allowed.get(name)?.has(value) ?? true),
    );
    return taken.length > 0 ? taken : choices;
  });
  let budget = target.kind === 'bpw' ? target.bits * weights - rest : 8 * target.bytes;
  let least = Number.NaN;
  // The bytes of a directory are those of its codes and of much else: each round takes away what the last was over.
  for (let round = 0; round < 12; round++) {
    const chosen = allocate(units, budget);
    if (!chosen) break;
    const found = { ...options, ...withChoice(options, measured, chosen) };
    const size = await outputBytes(checkpoint, {
      ...schemesFrom(found.settings, found.rules),
      lmHead: options.settings.lmHead,
    });
    if (target.kind === 'bpw' || size <= target.bytes) return { options: found, chosen, size };
    least = Math.min(size, Number.isNaN(least) ? size : least);
    budget -= 8 * (size - target.bytes) + 64;
  }
  const smallest = units.reduce((sum, choices) => sum + Math.min(...choices.map(({ cost }) => cost)), rest) / weights;
  const widths = WIDTHS.filter((bits) => units.some((choices) => choices.some(({ value }) => value === bits)));
  const taken =
    widths.length < WIDTHS.length ? `--pack ${options.packTarget} takes ${widths.join(', ')} bits only. ` : '';
  throw new LpqError(
    'LPQ_USAGE',
    target.kind === 'bpw'
      ? `--target-bpw ${target.bits} cannot be met`
      : `--target-size ${bytes(target.bytes)} cannot be met`,
    {
      got: target.kind === 'bpw' ? target.bits : bytes(target.bytes),
      expected: `at least ${smallest.toFixed(3)} bits per weight${Number.isNaN(least) ? '' : `; the smallest that was tried took ${bytes(least)}`}`,
      hint: `${taken}Use larger groups, or --lm-head: unquantized tensors count too.`,
    },
  );
}

/** The widths that --pack TARGET takes, by module; none without a target. */
async function allowedWidths(
  { packTarget, settings, rules, source }: QuantizeOptions,
  checkpoint: SourceCheckpoint,
): Promise<Map<string, Set<number>>> {
  const allowed = new Map<string, Set<number>>();
  if (packTarget === undefined) return allowed;
  const { previewDecisions } = await import('../../pack/preview.js');
  for (const bits of WIDTHS) {
    const modules = plannedModules(checkpoint, {
      ...schemesFrom({ ...settings, bits }, rules),
      lmHead: settings.lmHead,
      codes: methodOf(settings).codes,
    });
    for (const [name, { action }] of previewDecisions({ dir: source, config: checkpoint.config, modules }, packTarget)
      .decisions) {
      const widths = allowed.get(name) ?? new Set();
      if (action !== 'fallback') widths.add(bits);
      allowed.set(name, widths);
    }
  }
  return allowed;
}

/** The choice as settings and rules: the bits of most weights for the run, a rule for each other width. */
function withChoice(
  { settings, rules }: QuantizeOptions,
  measured: readonly Measured[],
  chosen: readonly Choice<number>[],
): Pick<QuantizeOptions, 'settings' | 'rules'> {
  const weights = new Map<number, number>();
  for (const [i, { unit }] of measured.entries()) {
    const bits = (chosen[i] as Choice<number>).value;
    weights.set(bits, (weights.get(bits) ?? 0) + unit.linears.reduce((sum, { n, k }) => sum + n * k, 0));
  }
  const [[base] = [4]] = [...weights].sort(([a, x], [b, y]) => y - x || a - b);
  const made = [...weights.keys()]
    .filter((bits) => bits !== base)
    .sort((a, b) => a - b)
    .map((bits): RecipeRule => {
      const patterns = new Set(
        measured.flatMap(({ unit }, i) =>
          (chosen[i] as Choice<number>).value === bits ? unit.linears.map(({ name }) => patternOf(name)) : [],
        ),
      );
      return {
        place: `the rule for ${bits} bits`,
        match: new RegExp(`^(?:${[...patterns].join('|')})$`),
        skip: false,
        scheme: { bits },
      };
    });
  // Settings in the order in which they are recorded, bits first.
  return { settings: { bits: base, ...settings }, rules: [...rules, ...made] };
}

/** All experts of a block have the same bits. */
function patternOf(name: string): string {
  return name.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&').replace(/\\\.experts\\\.\d+\\\./, '\\.experts\\.\\d+\\.');
}
