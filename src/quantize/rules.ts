import type { LinearRef } from '../model/program.js';
import { checkGroupSize, checkSparsity, type QuantScheme } from './scheme.js';

/** What to do with the modules whose path matches. The first rule that matches decides. */
export interface ModuleRule {
  readonly match: RegExp;
  /** 'skip' leaves the module as it is. */
  readonly scheme: QuantScheme | 'skip';
}

/** The scheme of a module, or undefined when it stays as it is. Throws LPQ_GROUP_SIZE and LPQ_SPARSITY naming it. */
export function schemeOf(
  linear: LinearRef,
  fallback: QuantScheme,
  rules: readonly ModuleRule[],
): QuantScheme | undefined {
  const rule = rules.find(({ match }) => match.test(linear.name));
  if (rule?.scheme === 'skip') return undefined;
  const scheme = rule?.scheme ?? fallback;
  checkGroupSize(scheme, linear.name, linear.k);
  checkSparsity(scheme, linear.name, linear.k);
  return scheme;
}
