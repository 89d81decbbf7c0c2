import type { Argument, Expr } from '../language/ast.js';
import type { Rule } from './instructions.js';
import { refuse, type Where } from './scope.js';

/** Arguments by name, in the order of the rule. Refuses unknown, doubled and missing ones, and wrong numbers of outputs. */
export function bind(
  rule: Rule,
  given: readonly Argument[],
  outputs: readonly string[],
  where: Where,
): Map<string, Expr> {
  const names = rule.args.map((each) => each.replace('?', ''));
  const args = new Map<string, Expr>();
  for (const [i, { name = names[i], value }] of given.entries()) {
    if (name === undefined || !names.includes(name))
      refuse(where, `it takes no ${name === undefined ? `argument ${i + 1}` : name}`, {
        expected: names.join(', ') || 'no arguments',
      });
    if (args.has(name)) refuse(where, `${name} is given twice`);
    args.set(name, value);
  }
  for (const each of rule.args)
    if (!each.endsWith('?') && !args.has(each)) refuse(where, `${each} is missing`, { expected: names.join(', ') });
  const made = outputs.length + (args.has('out') ? 1 : 0);
  if (rule.makes !== 'any' && made !== rule.makes)
    refuse(where, rule.makes === 1 ? 'its result, a tensor, needs a name' : 'it has no result that could have a name', {
      got: outputs.join(', ') || 'no name',
    });
  return args;
}
