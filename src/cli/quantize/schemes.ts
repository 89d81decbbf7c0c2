import { LpqError } from '../../core/error.js';
import type { ModuleRule } from '../../quantize/rules.js';
import { type QuantScheme, schemeFromOptions } from '../../quantize/scheme.js';
import type { RecipeRule } from './recipe.js';
import { type FullSettings, overrideScheme, type SchemeSettings } from './settings.js';

/** The scheme that settings describe. Throws LPQ_TYPE, LPQ_USAGE, LPQ_SPARSITY. */
export function schemeFrom({
  bits,
  dtype,
  groupSize,
  symmetric,
  scaleDtype,
  groupScales,
  sparsity,
}: SchemeSettings): QuantScheme {
  return schemeFromOptions({ bits, dtype, groupSize, asym: symmetric === false, scaleDtype, groupScales, sparsity });
}

/**
 * The run's scheme, the recipe's rules over it, and whether layers of multi-token prediction are among what they are for. A rule that
 * contradicts itself throws LPQ_RECIPE naming it.
 */
export function schemesFrom(
  settings: FullSettings,
  rules: readonly RecipeRule[],
): { scheme: QuantScheme; rules: ModuleRule[]; mtp?: true } {
  const scheme = schemeFrom(settings);
  return {
    scheme,
    rules: rules.map((rule) => ({ match: rule.match, scheme: ruleScheme(settings, rule) })),
    ...(settings.mtp && { mtp: true }),
  };
}

function ruleScheme(settings: FullSettings, { skip, place, scheme }: RecipeRule): QuantScheme | 'skip' {
  if (skip) return 'skip';
  try {
    return schemeFrom(overrideScheme<SchemeSettings, SchemeSettings>(settings, scheme));
  } catch (cause) {
    if (!(cause instanceof LpqError)) throw cause;
    const { got, expected, message, hint } = cause;
    throw new LpqError('LPQ_RECIPE', `${place}: ${message}`, {
      got,
      expected,
      ...(hint !== undefined && { hint }),
      cause,
    });
  }
}
