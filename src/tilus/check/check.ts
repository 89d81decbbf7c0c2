import { LpqError } from '../../core/error.js';
import type { Expr, Source, Statement } from '../language/ast.js';
import { printExpr } from '../language/expressions.js';
import { parseExpression } from '../language/parse.js';
import { headOf } from '../language/print.js';
import { bind } from './bind.js';
import { fold, isRunning, isType, Misfit, type Value } from './fold.js';
import { isLayout } from './functions.js';
import { INSTRUCTIONS } from './instructions.js';
import { layoutKey } from './layout-map.js';
import type { Node, Program } from './program.js';
import { refuse, Scope } from './scope.js';
import { planShared, type SHARED_LIMITS } from './shared.js';

/** Values for constants of a program, by name: numbers, or expressions such as 'u4'. */
export type Settings = Readonly<Record<string, number | string>>;

export interface CheckOptions {
  readonly settings?: Settings;
  /** The device whose shared memory the program must fit: 80, 86, 89, 90 (default 80). */
  readonly arch?: keyof typeof SHARED_LIMITS;
}

/**
 * Checks a program with its constants, some of them set from outside: names, scopes, shapes, types, layouts, the tensor cores' products,
 * shared memory. Computes all values that are known before the launch, and chooses branches on them. Throws LPQ_TILUS, naming line and instruction.
 */
export function check(source: Source, options: CheckOptions = {}): Program {
  const scope = new Scope(constantsOf(source, options), options.arch);
  const parameters = source.parameters.map(({ name, type, pointer }) => {
    const where = { line: 0, text: `parameter ${name}` };
    const dtype = scope.type(type, where);
    if (pointer) scope.constants.set(`*${name}`, dtype);
    else {
      if (dtype.name !== 'i32') refuse(where, 'a parameter is a pointer or an i32', { got: dtype.name });
      scope.addScalar(name, where);
    }
    return { name, dtype, pointer };
  });
  const grid = source.grid.map((each) => scope.number(each, { line: 0, text: `grid of ${source.name}` }));
  const body = new Checker(scope).statements(source.body);
  const used = [...scope.constants].filter(([name]) => !name.startsWith('*'));
  return {
    name: source.name,
    grid,
    parameters,
    body,
    threads: scope.threads ?? 128,
    shared: planShared(body, options.arch ?? 80),
    constants: new Map(used.map(([name, value]) => [name, printValue(value)])),
  };
}

function constantsOf(source: Source, { settings = {} }: CheckOptions): Map<string, Value> {
  const constants = new Map<string, Value>();
  const names = { constants, scalar: () => false };
  for (const name of Object.keys(settings))
    if (!source.constants.some((each) => each.name === name))
      throw new LpqError('LPQ_TILUS', `${source.name} has no constant ${name}`, {
        got: name,
        expected: source.constants.map((each) => each.name).join(', '),
      });
  for (const { name, value, line } of source.constants) {
    const set = Object.hasOwn(settings, name) ? settings[name] : undefined;
    const expr: Expr =
      typeof set === 'number' ? { kind: 'number', value: set } : typeof set === 'string' ? parseExpression(set) : value;
    try {
      constants.set(name, fold(expr, names));
    } catch (misfit) {
      if (!(misfit instanceof Misfit || misfit instanceof LpqError)) throw misfit;
      refuse({ line, text: `const ${name} = ${printExpr(expr)}` }, misfit.message, { got: String(misfit.got) });
    }
  }
  return constants;
}

/** A constant as text. */
export function printValue(value: Value): string {
  if (typeof value === 'number') return String(value);
  if (Array.isArray(value)) return `[${value.map(printValue).join(', ')}]`;
  if (isType(value)) return value.name;
  if (isLayout(value)) return `layout ${layoutKey(value)}`;
  return isRunning(value) ? printExpr(value.runs) : '';
}

class Checker {
  /** Variables of the loops around a statement. */
  private readonly loops = new Set<string>();

  constructor(private readonly scope: Scope) {}

  statements(list: readonly Statement[]): Node[] {
    return list.flatMap((each) => this.statement(each));
  }

  private statement(statement: Statement): Node[] {
    const where = { line: statement.line, text: headOf(statement) };
    switch (statement.kind) {
      case 'assign': {
        const value = this.scope.number(statement.value, where);
        if (this.loops.has(statement.name))
          refuse(where, `${statement.name} is a loop variable, which only the loop sets`);
        const fresh = this.scope.addScalar(statement.name, where);
        return [{ ...where, op: 'assign', name: statement.name, value, fresh }];
      }
      case 'call':
        return [this.call(statement, where)];
      case 'if': {
        const condition = this.scope.value(statement.condition, where);
        if (typeof condition === 'number')
          return this.statements(condition !== 0 ? statement.body : statement.otherwise);
        const [body, otherwise] = [statement.body, statement.otherwise].map((list) =>
          this.scope.block(() => this.statements(list)),
        ) as [Node[], Node[]];
        return [{ ...where, op: 'if', condition: this.scope.number(statement.condition, where), body, otherwise }];
      }
      case 'while': {
        const condition = this.scope.number(statement.condition, where);
        return [{ ...where, op: 'while', condition, body: this.scope.block(() => this.statements(statement.body)) }];
      }
      case 'for': {
        const { range, variable } = statement;
        const [start, end] = (range.length === 1 ? [{ kind: 'number', value: 0 } as const, range[0]!] : range).map(
          (each) => this.scope.number(each, where),
        ) as [Expr, Expr];
        const step = range.length === 3 ? this.scope.constant(range[2]!, where) : 1;
        if (step < 1) refuse(where, 'the step of a loop must be positive', { got: String(step) });
        if (this.scope.find(variable) !== undefined) refuse(where, `${variable} exists already`);
        const body = this.scope.block(() => {
          this.scope.addScalar(variable, where);
          this.loops.add(variable);
          const nodes = this.statements(statement.body);
          this.loops.delete(variable);
          return nodes;
        });
        return [{ ...where, op: 'for', variable, start, end, step, body }];
      }
    }
  }

  private call(statement: Statement & { kind: 'call' }, where: { line: number; text: string }): Node {
    const rule = Object.hasOwn(INSTRUCTIONS, statement.name) ? INSTRUCTIONS[statement.name] : undefined;
    if (!rule)
      refuse(where, `there is no instruction ${statement.name}`, { expected: Object.keys(INSTRUCTIONS).join(', ') });
    const args = bind(rule, statement.args, statement.outputs, where);
    try {
      return { ...where, ...rule.check({ ...where, scope: this.scope, args, outputs: statement.outputs }) };
    } catch (error) {
      if (error instanceof LpqError && error.code === 'LPQ_LAYOUT')
        refuse(where, error.message, { got: String(error.got) });
      throw error;
    }
  }
}
