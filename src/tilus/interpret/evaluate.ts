import { compute, Misfit } from '../check/fold.js';
import type { Expr } from '../language/ast.js';

/** The number of an expression of scalars. Throws Misfit for a division by 0. */
export function evaluate(expr: Expr, scalars: ReadonlyMap<string, number>): number {
  switch (expr.kind) {
    case 'number':
      return expr.value;
    case 'name':
      return scalars.get(expr.name)!;
    case 'unary':
      return expr.op === '-' ? -evaluate(expr.a, scalars) : evaluate(expr.a, scalars) === 0 ? 1 : 0;
    case 'binary':
      return compute(expr.op, evaluate(expr.a, scalars), evaluate(expr.b, scalars));
    case 'call': {
      const args = expr.args.map((arg) => evaluate(arg, scalars));
      return expr.name === 'min' ? Math.min(...args) : Math.max(...args);
    }
    default:
      throw new Misfit('no number', expr.kind);
  }
}
