import { bounded } from '../core/bounded.js';
import { LpqError } from '../core/error.js';
import type { LinearRef } from '../model/program.js';
import { groupSizeError, groupsFit, type Width } from './group-size.js';
import { checkGroupSize, checkSparsity, type QuantScheme } from './scheme.js';

/** What to do with the modules whose path matches. The first rule that matches decides. */
export interface ModuleRule {
  readonly match: RegExp;
  /** 'skip' leaves the module as it is. */
  readonly scheme: QuantScheme | 'skip';
}

/** Seconds that the rules of a run may take for a module. */
const PATIENCE = 20;

/**
 * Throws LPQ_GROUP_SIZE about all linears at once that the groups of the first such scheme do not divide: of a whole model it
 * matters how many there are, and what would fit them all.
 */
export function requireGroupSizes(
  linears: readonly LinearRef[],
  fallback: QuantScheme,
  rules: readonly ModuleRule[],
): void {
  const users = new Map<ModuleRule | undefined, Width[]>();
  for (const linear of linears) {
    const rule = ruleFor(linear, rules);
    if (rule?.scheme === 'skip') continue;
    const same = users.get(rule);
    if (same) same.push(linear);
    else users.set(rule, [linear]);
  }
  for (const [rule, all] of users) {
    const scheme = (rule?.scheme as QuantScheme | undefined) ?? fallback;
    const [first, ...others] = all.filter(({ k }) => !groupsFit(scheme, k));
    if (first) throw groupSizeError(scheme, [first, ...others], all, rule?.match);
  }
}

/** The scheme of a module, or undefined when it stays as it is. Throws LPQ_GROUP_SIZE, LPQ_SPARSITY and LPQ_BUDGET naming it. */
export function schemeOf(
  linear: LinearRef,
  fallback: QuantScheme,
  rules: readonly ModuleRule[],
  patience = PATIENCE,
): QuantScheme | undefined {
  const rule = ruleFor(linear, rules, patience);
  if (rule?.scheme === 'skip') return undefined;
  const scheme = rule?.scheme ?? fallback;
  checkGroupSize(scheme, linear.name, linear.k);
  checkSparsity(scheme, linear.name, linear.k);
  return scheme;
}

/** The first rule that matches. Throws LPQ_BUDGET after `patience` seconds. */
function ruleFor({ name }: LinearRef, rules: readonly ModuleRule[], patience = PATIENCE): ModuleRule | undefined {
  if (rules.length === 0) return undefined;
  let tried: ModuleRule | undefined;
  const first = () =>
    rules.find((each) => {
      tried = each;
      return each.match.test(name);
    });
  return bounded(
    patience,
    first,
    (cause) =>
      new LpqError('LPQ_BUDGET', `a rule takes too long to match ${name}`, {
        got: tried?.match.source,
        hint: 'Write the regular expression without nested repetitions, such as (a+)+.',
        cause,
      }),
  );
}
