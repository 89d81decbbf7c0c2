import { BINARY_LEVELS, type BinaryOp, type Expr } from './ast.js';
import type { Reader } from './parse.js';

/** An expression; `level` 3 leaves comparisons out, whose '>' would end a grid. Throws LPQ_TILUS. */
export function parseExpr(reader: Reader, level = 0): Expr {
  return reader.nested(() => levels(reader, level));
}

function levels(reader: Reader, level: number): Expr {
  if (level === BINARY_LEVELS.length) return unary(reader);
  let left = levels(reader, level + 1);
  for (let terms = 1; ; terms++) {
    reader.within(terms);
    const op = BINARY_LEVELS[level]!.find((each) => reader.is(each)) as BinaryOp | undefined;
    if (op === undefined) return left;
    reader.take();
    left = { kind: 'binary', op, a: left, b: levels(reader, level + 1) };
  }
}

function unary(reader: Reader): Expr {
  if (reader.accept('-')) return { kind: 'unary', op: '-', a: reader.nested(() => unary(reader)) };
  if (reader.accept('not')) return { kind: 'unary', op: 'not', a: reader.nested(() => unary(reader)) };
  let value = primary(reader);
  for (let factors = 1; reader.accept('.'); factors++) {
    reader.within(factors);
    const name = reader.kind('name');
    value = reader.accept('(')
      ? { kind: 'dot', left: value, name, args: reader.list(')', () => parseExpr(reader)) }
      : { kind: 'dot', left: value, name };
  }
  return value;
}

function primary(reader: Reader): Expr {
  const { kind, text } = reader.next;
  if (kind === 'number') {
    reader.take();
    return /[.e]/.test(text) && !text.startsWith('0x')
      ? { kind: 'number', value: Number(text), real: true }
      : { kind: 'number', value: Number(text) };
  }
  if (kind === 'name') {
    reader.take();
    if (!reader.accept('(')) return { kind: 'name', name: text };
    return { kind: 'call', name: text, args: reader.list(')', () => parseExpr(reader)) };
  }
  if (reader.accept('(')) {
    const value = parseExpr(reader);
    reader.expect(')');
    return value;
  }
  if (reader.accept('[')) {
    const items = reader.list(']', () => {
      const start = parseExpr(reader);
      return reader.accept(':') ? ({ kind: 'slice', start } as const) : start;
    });
    return { kind: 'list', items };
  }
  return reader.fail('an expression');
}

/** The expression as text, with the brackets that it needs. */
export function printExpr(value: Expr, above = 0): string {
  switch (value.kind) {
    case 'number':
      return value.real && Number.isInteger(value.value) ? value.value.toFixed(1) : String(value.value);
    case 'name':
      return value.name;
    case 'call':
      return `${value.name}(${value.args.map((arg) => printExpr(arg)).join(', ')})`;
    case 'dot':
      return `${printExpr(value.left, 6)}.${value.name}${value.args ? `(${value.args.map((arg) => printExpr(arg)).join(', ')})` : ''}`;
    case 'list':
      return `[${value.items.map((item) => printExpr(item)).join(', ')}]`;
    case 'slice':
      return `${printExpr(value.start)}:`;
    case 'unary':
      return `${value.op === 'not' ? 'not ' : '-'}${printExpr(value.a, 6)}`;
    case 'binary': {
      const level = BINARY_LEVELS.findIndex((ops) => (ops as readonly string[]).includes(value.op)) + 1;
      const text = `${printExpr(value.a, level)} ${value.op} ${printExpr(value.b, level + 1)}`;
      return level < above ? `(${text})` : text;
    }
  }
}
