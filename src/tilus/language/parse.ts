import type { Argument, Expr, Parameter, Source, Statement } from './ast.js';
import { parseExpr } from './expressions.js';
import { syntaxError, type Token, tokens } from './lexer.js';

/** Brackets and blocks within one another. */
const DEEPEST = 100;

/** Tokens with a place in them. */
export class Reader {
  private at = 0;
  private depth = 0;
  constructor(private readonly all: readonly Token[]) {}

  get next(): Token {
    return this.all[this.at]!;
  }
  take(): Token {
    return this.all[this.at++]!;
  }
  is(text: string, ahead = 0): boolean {
    return this.all[this.at + ahead]?.text === text;
  }
  accept(text: string): boolean {
    if (!this.is(text)) return false;
    this.at++;
    return true;
  }
  expect(text: string): void {
    if (!this.accept(text)) this.fail(`'${text}'`);
  }
  kind(kind: Token['kind']): string {
    if (this.next.kind !== kind) this.fail(`a ${kind}`);
    return this.take().text;
  }
  fail(expected: string): never {
    const { kind, text, line } = this.next;
    throw syntaxError(line, 'the program has a syntax error', text === '' ? `the ${kind}` : `'${text}'`, expected);
  }
  /** Refuses expressions that are nested too deeply; the terms of a sum nest, too. */
  within(depth: number): void {
    if (depth > DEEPEST) throw syntaxError(this.next.line, 'the text is nested too deeply', `${depth} levels`);
  }
  /** Runs `inner` one level deeper; the depth of texts is bounded. */
  nested<T>(inner: () => T): T {
    this.within(++this.depth);
    const value = inner();
    this.depth--;
    return value;
  }
  /** Items between commas up to and including `end`. */
  list<T>(end: string, item: () => T): T[] {
    const items: T[] = [];
    while (!this.accept(end)) {
      items.push(item());
      if (!this.is(end)) this.expect(',');
    }
    return items;
  }
}

/** A program of its text (Tilus, Figs. 2 and 9 are such texts). Throws LPQ_TILUS with the line. */
export function parse(text: string): Source {
  const reader = new Reader(tokens(text));
  const constants = [];
  while (reader.is('const')) constants.push(...constantLine(reader));
  reader.expect('def');
  const name = reader.kind('name');
  reader.expect('<');
  const grid = reader.list('>', () => parseExpr(reader, 3));
  reader.expect('(');
  const parameters = reader.list(')', () => parameter(reader));
  reader.expect(':');
  const body = block(reader);
  if (reader.next.kind !== 'end') reader.fail('the end of the program');
  return { constants, name, grid, parameters, body };
}

/** One statement, for those who build programs. Throws LPQ_TILUS. */
export function parseStatement(text: string): Statement {
  return statement(new Reader(tokens(text)));
}

/** One expression. Throws LPQ_TILUS. */
export function parseExpression(text: string): Expr {
  return parseExpr(new Reader(tokens(text)));
}

function constantLine(reader: Reader): Source['constants'][number][] {
  const { line } = reader.take();
  const names = [reader.kind('name')];
  while (reader.accept(',')) names.push(reader.kind('name'));
  reader.expect('=');
  const values = [parseExpr(reader)];
  while (reader.accept(',')) values.push(parseExpr(reader));
  if (values.length !== names.length)
    throw syntaxError(line, 'the numbers of constants and values differ', `${values.length} values`, `${names.length}`);
  reader.kind('newline');
  return names.map((name, i) => ({ name, value: values[i]!, line }));
}

export function parameter(reader: Reader): Parameter {
  const type: Expr = { kind: 'name', name: reader.kind('name') };
  const pointer = reader.accept('*');
  return { name: reader.kind('name'), type, pointer };
}

function block(reader: Reader): Statement[] {
  reader.kind('newline');
  reader.kind('indent');
  const body: Statement[] = [];
  while (reader.next.kind !== 'dedent') body.push(reader.nested(() => statement(reader)));
  reader.take();
  return body;
}

function statement(reader: Reader): Statement {
  const { line } = reader.next;
  if (reader.is('if')) return conditional(reader, line);
  if (reader.accept('while')) {
    const condition = parseExpr(reader);
    reader.expect(':');
    return { kind: 'while', line, condition, body: block(reader) };
  }
  if (reader.accept('for')) {
    const variable = reader.kind('name');
    reader.expect('in');
    reader.expect('range');
    reader.expect('(');
    const range = reader.list(')', () => parseExpr(reader));
    if (range.length < 1 || range.length > 3)
      throw syntaxError(line, 'range takes one to three numbers', `${range.length}`);
    reader.expect(':');
    return { kind: 'for', line, variable, range, body: block(reader) };
  }
  return simple(reader, line);
}

function conditional(reader: Reader, line: number): Statement {
  reader.take();
  const condition = parseExpr(reader);
  reader.expect(':');
  const body = block(reader);
  const at = reader.next.line;
  if (reader.is('elif'))
    return { kind: 'if', line, condition, body, otherwise: [reader.nested(() => conditional(reader, at))] };
  if (!reader.accept('else')) return { kind: 'if', line, condition, body, otherwise: [] };
  reader.expect(':');
  return { kind: 'if', line, condition, body, otherwise: block(reader) };
}

/** Instructions have names in capitals; whatever else is assigned is a scalar. */
function simple(reader: Reader, line: number): Statement {
  const outputs: string[] = [];
  if (reader.is('=', 1) || reader.is(',', 1)) {
    outputs.push(reader.kind('name'));
    while (reader.accept(',')) outputs.push(reader.kind('name'));
    reader.expect('=');
  }
  if (reader.next.kind === 'name' && /^[A-Z]\w*[a-z]/.test(reader.next.text) && reader.is('(', 1)) {
    const name = reader.take().text;
    reader.take();
    const args = reader.list(')', () => argument(reader));
    reader.kind('newline');
    return { kind: 'call', line, outputs, name, args };
  }
  if (outputs.length !== 1) reader.fail('an instruction');
  const value = parseExpr(reader);
  reader.kind('newline');
  return { kind: 'assign', line, name: outputs[0]!, value };
}

function argument(reader: Reader): Argument {
  if (reader.next.kind === 'name' && reader.is('=', 1)) {
    const name = reader.take().text;
    reader.take();
    return { name, value: parseExpr(reader) };
  }
  return { value: parseExpr(reader) };
}
