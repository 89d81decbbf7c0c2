import { openBlocks } from '../../model/graph.js';
import { commonGroupSize, GROUP_SIZES, type Width } from '../../quantize/group-size.js';
import { linearsToQuantize } from '../../quantize/plan.js';
import { openOrPlan } from '../../quantize/planned-source.js';
import { schemeFromOptions } from '../../quantize/scheme.js';
import type { Run } from '../run.js';
import { methodOf } from './methods.js';
import type { QuantizeOptions } from './options.js';
import type { RecipeRule } from './recipe.js';
import { overrideScheme, type SchemeSettings } from './settings.js';

/** Stands for a size that nobody chose. */
const UNSAID = -1;

/**
 * The options with the group size that suits the model, where nobody chose one: the largest of 128, 64 and 32 that divides every
 * module, for formats have one for all. Modules that even 32 does not divide stay in 16 bits. Both are said. Types
 * and methods that have groups of their own keep them. Throws what opening the model throws.
 */
export function fitGroupSize(options: QuantizeOptions, run: Run): QuantizeOptions {
  const { settings, source: dir } = options;
  if (settings.groupSize !== undefined || methodOf(settings).codes) return options;
  // What is kept of an earlier run had a part in its choice.
  const rules = options.redo ? options.rules.slice(1) : options.rules;
  const open = modulesWithoutSize(dir, settings, rules);
  const least = GROUP_SIZES.at(-1) as number;
  const fitting = open.filter(({ k }) => k % least === 0);
  const size = fitting.length > 0 ? commonGroupSize(fitting) : undefined;
  if (size === undefined || (size === GROUP_SIZES[0] && fitting.length === open.length)) return options;
  if (size !== GROUP_SIZES[0]) {
    const features = [...new Set(fitting.filter(({ k }) => k % GROUP_SIZES[0] !== 0).map(({ k }) => k))];
    const why = `${GROUP_SIZES[0]} does not divide ${features.slice(0, 4).join(', ')}${features.length > 4 ? ' ...' : ''} input features`;
    run.report.event('group-size', { groupSize: size, features }, `groups of ${size}: ${why}`);
  }
  const left = open.filter(({ k }) => k % least !== 0).map(({ name }) => name);
  if (left.length > 0)
    run.report.warn(
      `${left.length === 1 ? 'a module stays' : `${left.length} modules stay`} in 16 bits, because no group size divides its input features: ${left.slice(0, 5).join(', ')}${left.length > 5 ? ', ...' : ''}; --group-size channel quantizes all`,
      { modules: left },
    );
  const sized = options.rules.map((rule) => withSize(rule, settings, size));
  return {
    ...options,
    settings: sizeOf(settings, size) === size ? { ...settings, groupSize: size } : settings,
    rules: withLeft({ ...options, rules: sized }, left),
  };
}

/** A rule says its size itself, for its type may have another than that of the run. */
function withSize(rule: RecipeRule, settings: SchemeSettings, size: number): RecipeRule {
  if (rule.skip || rule.scheme.groupSize !== undefined) return rule;
  const groupSize = sizeOf(overrideScheme<SchemeSettings, SchemeSettings>(settings, rule.scheme), size);
  return groupSize === undefined ? rule : { ...rule, scheme: { ...rule.scheme, groupSize } };
}

/** Before the recipe's own rules, behind that of --redo. */
function withLeft({ rules, redo }: QuantizeOptions, left: readonly string[]): readonly RecipeRule[] {
  if (left.length === 0) return rules;
  const escaped = left.map((name) => name.replace(/[.*+?^${}()|[\]\\]/g, '\\$&'));
  const rule: RecipeRule = {
    place: 'the default group size',
    match: new RegExp(`^(?:${escaped.join('|')})$`),
    skip: true,
    scheme: {},
  };
  return redo ? [rules[0] as RecipeRule, rule, ...rules.slice(1)] : [rule, ...rules];
}

/** Linears for which neither options, nor a rule, nor their type says how many weights share a scale. */
function modulesWithoutSize(dir: string, settings: QuantizeOptions['settings'], rules: readonly RecipeRule[]): Width[] {
  const source = openOrPlan(dir);
  try {
    return linearsToQuantize(openBlocks(source, settings.mtp), settings.lmHead).filter(({ name }) => {
      const rule = rules.find(({ match }) => match.test(name));
      const scheme = overrideScheme<SchemeSettings, SchemeSettings>(settings, rule?.scheme ?? {});
      return !rule?.skip && scheme.groupSize === undefined && sizeOf(scheme, UNSAID) === UNSAID;
    });
  } finally {
    source.close();
  }
}

/** The group size of a scheme: `size` where only the default says so; undefined for a scheme with a mistake, told where it is used. */
function sizeOf(
  { bits, dtype, groupSize, groupScales }: SchemeSettings,
  size: number,
): SchemeSettings['groupSize'] | undefined {
  if (groupScales === 'integer') return groupSize ?? GROUP_SIZES[0];
  if (groupSize !== undefined || dtype === undefined) return groupSize ?? size;
  try {
    const { granularity } = schemeFromOptions({ bits, dtype });
    if (granularity.kind === 'channel') return 'channel';
    return granularity.size === GROUP_SIZES[0] ? size : granularity.size;
  } catch {
    return undefined;
  }
}
