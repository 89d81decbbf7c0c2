import type { Layout } from '../../layout/layout.js';
import { product } from '../../layout/product.js';
import type { Expr } from '../language/ast.js';
import { printExpr } from '../language/expressions.js';
import { ELEMENT_TYPES, type ElementType } from '../types.js';
import { FUNCTIONS, isLayout, isPrimitive, PRIMITIVES } from './functions.js';

/** The value of an expression before a program runs: a number, a type, a layout, a list of these; or an expression of scalars at run time. */
export type Value = number | ElementType | Layout | readonly Value[] | { readonly runs: Expr };

export interface Names {
  readonly constants: ReadonlyMap<string, Value>;
  /** Whether a scalar of this name exists where the program runs. */
  scalar(name: string): boolean;
}

/** A sentence about an expression; the caller adds where it stands. */
export class Misfit extends Error {
  constructor(
    sentence: string,
    readonly got: string,
    readonly expected?: string,
  ) {
    super(sentence);
  }
}

export const isType = (value: Value): value is ElementType =>
  typeof value === 'object' && 'bits' in value && 'name' in value;
export const isRunning = (value: Value): value is { readonly runs: Expr } =>
  typeof value === 'object' && 'runs' in value;

/** Evaluates what is constant in an expression. Throws Misfit. */
export function fold(expr: Expr, names: Names): Value {
  switch (expr.kind) {
    case 'number':
      return expr.real ? { runs: expr } : expr.value;
    case 'name':
      return nameValue(expr.name, names);
    case 'list':
      return expr.items.map((item) => fold(item, names));
    case 'slice':
      throw new Misfit("'start:' is only for offsets", printExpr(expr));
    case 'unary': {
      const a = fold(expr.a, names);
      if (typeof a === 'number') return expr.op === '-' ? -a : a === 0 ? 1 : 0;
      if (isRunning(a) && a.runs.kind === 'number') return { runs: { ...a.runs, value: -a.runs.value } };
      return { runs: { ...expr, a: asExpr(a, expr) } };
    }
    case 'call':
      return call(expr, names);
    case 'dot':
      return composed(expr, names);
    case 'binary':
      return binary(expr, fold(expr.a, names), fold(expr.b, names));
  }
}

function nameValue(name: string, names: Names): Value {
  const constant = names.constants.get(name);
  if (constant !== undefined && !names.scalar(name)) return constant;
  if (names.scalar(name)) return { runs: { kind: 'name', name } };
  const type = ELEMENT_TYPES.get(name);
  if (type) return type;
  throw new Misfit(`there is no ${name} here`, name, 'a constant, a scalar that is set earlier, or a type');
}

/** The expression of a folded value. Throws Misfit for what is no number. */
export function asExpr(value: Value, expr: Expr): Expr {
  if (typeof value === 'number') return { kind: 'number', value };
  if (isRunning(value)) return value.runs;
  throw new Misfit('this must be a number', printExpr(expr), 'a number, or an expression of scalars');
}

function call(expr: Expr & { kind: 'call' }, names: Names): Value {
  const args = expr.args.map((arg) => fold(arg, names));
  if (isPrimitive(expr.name)) return PRIMITIVES[expr.name](numbers(args, expr));
  const made = Object.hasOwn(FUNCTIONS, expr.name) ? FUNCTIONS[expr.name] : undefined;
  if (!made)
    throw new Misfit(
      `there is no function ${expr.name}`,
      printExpr(expr),
      [...Object.keys(PRIMITIVES), ...Object.keys(FUNCTIONS)].join(', '),
    );
  if (args.some(isRunning)) {
    if (expr.name !== 'min' && expr.name !== 'max')
      throw new Misfit(`${expr.name} takes constants only`, printExpr(expr));
    return { runs: { ...expr, args: args.map((arg, i) => asExpr(arg, expr.args[i]!)) } };
  }
  const result = made(args);
  if (result === undefined) throw new Misfit(`${expr.name} does not take these arguments`, printExpr(expr));
  return result;
}

function numbers(args: readonly Value[], expr: Expr): number[] {
  return args.map((arg) => {
    if (typeof arg !== 'number' || !Number.isSafeInteger(arg) || arg < 1)
      throw new Misfit('a layout takes positive integers', printExpr(expr));
    return arg;
  });
}

/** f.spatial(8, 4), f.g: products; f.collapse(d): dimension d gets size 1, its threads hold replicas. */
function composed(expr: Expr & { kind: 'dot' }, names: Names): Value {
  const left = fold(expr.left, names);
  if (!isLayout(left)) throw new Misfit('only layouts can be multiplied with a dot', printExpr(expr.left), 'a layout');
  const args = (expr.args ?? []).map((arg) => fold(arg, names));
  if (expr.args && expr.name === 'collapse') {
    const result = FUNCTIONS.collapse!([left, ...args]);
    if (result === undefined) throw new Misfit('collapse takes the number of a dimension', printExpr(expr));
    return result;
  }
  const right = expr.args
    ? isPrimitive(expr.name)
      ? PRIMITIVES[expr.name](numbers(args, expr))
      : fold({ kind: 'call', name: expr.name, args: expr.args }, names)
    : fold({ kind: 'name', name: expr.name }, names);
  if (!isLayout(right)) throw new Misfit(`${expr.name} is not a layout`, printExpr(expr));
  if (right.shape.length !== left.shape.length)
    throw new Misfit('layouts of different rank cannot be multiplied', printExpr(expr), `rank ${left.shape.length}`);
  return product(left, right);
}

function binary(expr: Expr & { kind: 'binary' }, a: Value, b: Value): Value {
  if ((expr.op === '==' || expr.op === '!=') && isType(a) && isType(b))
    return (a.name === b.name) === (expr.op === '==') ? 1 : 0;
  if (typeof a === 'number' && typeof b === 'number') return compute(expr.op, a, b);
  const [x, y] = [asExpr(a, expr.a), asExpr(b, expr.b)];
  if (expr.op === '*' && (a === 0 || b === 0)) return 0;
  if ((expr.op === '+' && a === 0) || (expr.op === '*' && a === 1)) return { runs: y };
  if (((expr.op === '+' || expr.op === '-') && b === 0) || ((expr.op === '*' || expr.op === '/') && b === 1))
    return { runs: x };
  return { runs: { ...expr, a: x, b: y } };
}

/** An operation on integers; / and % truncate, as in C. Throws Misfit for a division by 0. */
export function compute(op: (Expr & { kind: 'binary' })['op'], a: number, b: number): number {
  switch (op) {
    case '+':
      return a + b;
    case '-':
      return a - b;
    case '*':
      return a * b;
    case '/':
    case '%':
      if (b === 0) throw new Misfit('a division by 0', `${a} ${op} ${b}`);
      return op === '/' ? Math.trunc(a / b) : a % b;
    case '==':
      return a === b ? 1 : 0;
    case '!=':
      return a !== b ? 1 : 0;
    case '<':
      return a < b ? 1 : 0;
    case '<=':
      return a <= b ? 1 : 0;
    case '>':
      return a > b ? 1 : 0;
    case '>=':
      return a >= b ? 1 : 0;
    case 'and':
      return a !== 0 && b !== 0 ? 1 : 0;
    case 'or':
      return a !== 0 || b !== 0 ? 1 : 0;
  }
}
