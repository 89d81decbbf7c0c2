import { bounded } from '../core/bounded.js';
import { LpqError } from '../core/error.js';
import type { LinearRef } from '../model/program.js';
import { checkGroupSize, checkSparsity, type QuantScheme } from './scheme.js';

/** What to do with the modules whose path matches. The first rule that matches decides. */
export interface ModuleRule {
  readonly match: RegExp;
  /** 'skip' leaves the module as it is. */
  readonly scheme: QuantScheme | 'skip';
}

/** Seconds that the rules of a run may take for a module. */
const PATIENCE = 20;

/** The scheme of a module, or undefined when it stays as it is. Throws LPQ_GROUP_SIZE, LPQ_SPARSITY and LPQ_BUDGET naming it. */
export function schemeOf(
  linear: LinearRef,
  fallback: QuantScheme,
  rules: readonly ModuleRule[],
  patience = PATIENCE,
): QuantScheme | undefined {
  let tried: ModuleRule | undefined;
  const chosen = () =>
    rules.find((each) => {
      tried = each;
      return each.match.test(linear.name);
    });
  const rule =
    rules.length === 0
      ? undefined
      : bounded(
          patience,
          chosen,
          (cause) =>
            new LpqError('LPQ_BUDGET', `a rule takes too long to say whether it matches ${linear.name}`, {
              got: tried?.match.source,
              hint: 'Write the regular expression without repetitions of repetitions, such as (a+)+.',
              cause,
            }),
        );
  if (rule?.scheme === 'skip') return undefined;
  const scheme = rule?.scheme ?? fallback;
  checkGroupSize(scheme, linear.name, linear.k);
  checkSparsity(scheme, linear.name, linear.k);
  return scheme;
}
