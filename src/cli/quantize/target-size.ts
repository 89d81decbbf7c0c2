import { SourceCheckpoint } from '../../../formats/canonical/source.js';
import type { NativeRuntime } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import { openBlocks } from '../../model/graph.js';
import { allocate, type Choice } from '../../quantize/allocate.js';
import { outputBytes } from '../../quantize/estimate.js';
import { bitsPerWeight } from '../../quantize/grid.js';
import { type ModulePlan, plannedModules, planQuantization } from '../../quantize/plan.js';
import type { QuantScheme } from '../../quantize/scheme.js';
import { type Unit, unitsOf } from '../../quantize/sensitivity.js';
import { SourceView } from '../../quantize/source-view.js';
import type { Run } from '../run.js';
import { bytes } from '../terminal/units.js';
import { calibrate } from './calibration.js';
import { type Candidate, candidatesOf } from './candidates.js';
import { methodOf } from './methods.js';
import type { QuantizeOptions } from './options.js';
import type { RecipeRule } from './recipe.js';
import { schemesFrom } from './schemes.js';
import { overrideScheme, type SchemeSettings } from './settings.js';
import { listed, tellChoice, type Uniform } from './tell-choice.js';
import { type ChooseBy, measureFor, unitErrors } from './unit-errors.js';

/** What the quantized checkpoint shall come to: bytes of the whole directory, or bits of a quantized weight in the mean. */
export type SizeTarget =
  | { readonly kind: 'size'; readonly bytes: number }
  | { readonly kind: 'bpw'; readonly bits: number };

/** What the choice is made by and among, beside the target. */
export interface TargetChoice {
  readonly target: SizeTarget;
  readonly by: ChooseBy | undefined;
  /** As given to --choose-from. */
  readonly among: string | undefined;
  readonly streamed: boolean;
}

/** Calibration sequences that errors are measured with: enough to rank units by. */
const SEQUENCES = 16;
/** Local errors become nats by what this width does to the predictions. */
const REFERENCE = 3;

/**
 * Settings and rules that meet a target: every unit (what an engine fuses) gets the type that makes the sum of the measured
 * losses smallest. The recipe's own rules stay before them. Throws LPQ_USAGE where no choice is small enough.
 */
export async function solveTarget(
  options: QuantizeOptions,
  { target, by, among, streamed }: TargetChoice,
  rts: readonly NativeRuntime[],
  run: Run,
): Promise<QuantizeOptions> {
  const candidates = candidatesOf(options.settings, among);
  const checkpoint = SourceCheckpoint.open(options.source);
  try {
    const source = new SourceView(checkpoint);
    const graph = openBlocks(source, options.settings.mtp);
    const { lmHead } = options.settings;
    // All of them, so that groups that do not fit are refused before anything is measured.
    const [plan] = candidates.map((each) =>
      planQuantization(graph, {
        ...schemesFrom(overrideScheme(options.settings, each.settings), options.rules),
        lmHead,
      }),
    ) as [ModulePlan];
    const fixed = new Set([...plan.keys()].filter((name) => options.rules.some(({ match }) => match.test(name))));
    const units = unitsOf(graph, new Set([...plan.keys()].filter((name) => !fixed.has(name))));
    if (units.length === 0) throw new LpqError('LPQ_USAGE', "the recipe's rules fix the bits of every module");
    const model = { rts, source, graph, streamed };
    const measure = await measureFor(model, by);
    const schemes = candidates.map(({ scheme }) => scheme);
    const samples = Math.min(SEQUENCES, options.settings.samples);
    const { sequences } = await calibrate({ ...options, settings: { ...options.settings, samples } }, run);
    const away = ({ type }: QuantScheme) => Math.abs(type.bits - REFERENCE);
    const reference = schemes.reduce((best, scheme, i) => (away(scheme) < away(schemes[best]!) ? i : best), 0);
    const measured = await unitErrors({ ...model, units, schemes, reference, sequences }, measure, run);
    const allowed = await allowedBy(options, candidates, checkpoint);
    const rest = [...plan].reduce(
      (sum, [name, { linear, scheme }]) =>
        sum + (fixed.has(name) ? bitsPerWeight(scheme, linear.n, linear.k) * linear.n * linear.k : 0),
      0,
    );
    const weights = [...plan.values()].reduce((sum, { linear }) => sum + linear.n * linear.k, 0);
    const solved = await search(options, target, {
      ...measured,
      units,
      candidates,
      allowed,
      rest,
      weights,
      checkpoint,
    });
    const { chosen, size } = solved;
    const bpw = (chosen.reduce((sum, { cost }) => sum + cost, 0) + rest) / weights;
    const error = chosen.reduce((sum, choice) => sum + choice.error, 0);
    const uniform = candidates
      .map(({ label, settings: { bits } }, i) => ({
        ...{ label, ...(bits !== undefined && { bits }) },
        cost: measured.costs.reduce((sum, costs) => sum + (costs[i] as number), rest) / weights,
        error: measured.errors.reduce((sum, errors) => sum + (errors[i] as number), 0),
      }))
      .filter(({ cost }) => cost <= bpw + 1e-9)
      .reduce((best: Uniform | undefined, each) => (!best || each.error < best.error ? each : best), undefined);
    tellChoice({ target, by: measure, units, chosen, candidates, bpw, size, error, uniform }, run);
    return solved.options;
  } finally {
    checkpoint.close();
  }
}

interface Facts {
  readonly units: readonly Unit[];
  readonly candidates: readonly Candidate[];
  readonly errors: readonly (readonly number[])[];
  readonly costs: readonly (readonly number[])[];
  /** By module: places in `candidates`. */
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
  const { allowed, rest, weights, checkpoint, candidates } = facts;
  const units = facts.units.map(({ linears }, u) => {
    const choices = candidates.map((_, i) => ({
      ...{ value: i, cost: facts.costs[u]?.[i] as number, error: facts.errors[u]?.[i] as number },
    }));
    const taken = choices.filter(({ value }) => linears.every(({ name }) => allowed.get(name)?.has(value) ?? true));
    return taken.length > 0 ? taken : choices;
  });
  let budget = target.kind === 'bpw' ? target.bits * weights - rest : 8 * target.bytes;
  let least = Number.NaN;
  // The bytes of a directory are those of its codes and of much else: each round takes away what the last was over.
  for (let round = 0; round < 12; round++) {
    const chosen = allocate(units, budget);
    if (!chosen) break;
    const found = { ...options, ...withChoice(options, facts, chosen) };
    const size = await outputBytes(checkpoint, {
      ...schemesFrom(found.settings, found.rules),
      lmHead: options.settings.lmHead,
    });
    if (target.kind === 'bpw' || size <= target.bytes) return { options: found, chosen, size };
    least = Math.min(size, Number.isNaN(least) ? size : least);
    budget -= 8 * (size - target.bytes) + 64;
  }
  const smallest = units.reduce((sum, choices) => sum + Math.min(...choices.map(({ cost }) => cost)), rest) / weights;
  const open = candidates.filter((_, i) => units.some((choices) => choices.some(({ value }) => value === i)));
  const taken = open.length < candidates.length ? `--pack ${options.packTarget} takes ${listed(open)} only. ` : '';
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

/** What --pack TARGET takes of the candidates, by module; nothing without a target. */
async function allowedBy(
  { packTarget, settings, rules, source }: QuantizeOptions,
  candidates: readonly Candidate[],
  checkpoint: SourceCheckpoint,
): Promise<Map<string, Set<number>>> {
  const allowed = new Map<string, Set<number>>();
  if (packTarget === undefined) return allowed;
  const { previewDecisions } = await import('../../pack/preview.js');
  for (const [i, candidate] of candidates.entries()) {
    const modules = plannedModules(checkpoint, {
      ...schemesFrom(overrideScheme(settings, candidate.settings), rules),
      lmHead: settings.lmHead,
      codes: methodOf(settings).codes,
    });
    for (const [name, { action }] of previewDecisions({ dir: source, config: checkpoint.config, modules }, packTarget)
      .decisions) {
      const taken = allowed.get(name) ?? new Set();
      if (action !== 'fallback') taken.add(i);
      allowed.set(name, taken);
    }
  }
  return allowed;
}

/** The choice as settings and rules: the type of most weights for the run, a rule for each other. */
function withChoice(
  { settings, rules }: QuantizeOptions,
  { units, candidates }: Pick<Facts, 'units' | 'candidates'>,
  chosen: readonly Choice<number>[],
): Pick<QuantizeOptions, 'settings' | 'rules'> {
  const weights = new Map<number, number>();
  for (const [i, { linears }] of units.entries()) {
    const { value } = chosen[i] as Choice<number>;
    weights.set(value, (weights.get(value) ?? 0) + linears.reduce((sum, { n, k }) => sum + n * k, 0));
  }
  const [[base] = [0]] = [...weights].sort(([a, x], [b, y]) => y - x || a - b);
  const made = [...weights.keys()]
    .filter((value) => value !== base)
    .sort((a, b) => a - b)
    .map((value): RecipeRule => {
      const { label, settings: scheme } = candidates[value] as Candidate;
      const patterns = new Set(
        units.flatMap(({ linears }, i) =>
          (chosen[i] as Choice<number>).value === value ? linears.map(({ name }) => patternOf(name)) : [],
        ),
      );
      return {
        place: `the rule for ${label}`,
        match: new RegExp(`^(?:${[...patterns].join('|')})$`),
        ...{ skip: false, scheme },
      };
    });
  // Settings in the order in which they are recorded, those of the type first.
  const most = candidates[base]?.settings as SchemeSettings;
  return { settings: { ...most, ...settings, ...most }, rules: [...rules, ...made] };
}

/** All experts of a block have the same bits. */
function patternOf(name: string): string {
  return name.replace(/[\\^$.*+?()[\]{}|]/g, '\\$&').replace(/\\\.experts\\\.\d+\\\./, '\\.experts\\.\\d+\\.');
}
