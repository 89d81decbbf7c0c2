import { LpqError } from '../core/error.js';
import { groupLength } from '../core/granularity.js';
import type { LinearRef } from '../model/program.js';
import type { QuantScheme } from './scheme.js';

/** What to do with the modules whose path matches. The first rule that matches decides. */
export interface ModuleRule {
  readonly match: RegExp;
  /** 'skip' leaves the module as it is. */
  readonly scheme: QuantScheme | 'skip';
}

/** The scheme of a module, or undefined when it stays as it is. Throws LPQ_GROUP_SIZE naming it. */
export function schemeOf(linear: LinearRef, fallback: QuantScheme, rules: readonly ModuleRule[]): QuantScheme | undefined {
  const rule = rules.find(({ match }) => match.test(linear.name));
  if (rule?.scheme === 'skip') return undefined;
  const scheme = rule?.scheme ?? fallback;
  const size = groupLength(scheme.granularity, linear.k);
  if (linear.k % size !== 0)
    throw new LpqError('LPQ_GROUP_SIZE', `groups of ${size} do not divide the ${linear.k} input features of ${linear.name}`, {
      got: size,
      expected: `channel, or one of ${divisors(linear.k).join(', ')}`,
      hint: 'Choose another --group-size, or give this module its own with a recipe rule.',
    });
  return scheme;
}

/** Group sizes from 16 up that divide K. */
function divisors(k: number): number[] {
  return Array.from({ length: k - 15 }, (_, i) => i + 16).filter((size) => k % size === 0);
}
