import { gcd } from '../check/functions.js';
import type { Node, Program } from '../check/program.js';
import type { Expr } from '../language/ast.js';

/** What is known of a whole number before the launch: its least and greatest value, and a number that divides it. */
export interface Known {
  readonly low: number;
  readonly high: number;
  readonly divisor: number;
}

const INFINITE = Number.POSITIVE_INFINITY;
const UNKNOWN: Known = { low: -INFINITE, high: INFINITE, divisor: 1 };
const exactly = (value: number): Known => ({ low: value, high: value, divisor: Math.abs(value) });

/** Known facts of a program's scalars: loop variables, block indices, numbers that are set once. */
export class Ranges {
  private readonly known = new Map<string, Known>();
  /** The number of times that each name is set. */
  private readonly sets = new Map<string, number>();

  constructor(program: Program) {
    for (const { name, pointer } of program.parameters) if (!pointer) this.known.set(name, { ...UNKNOWN, low: 0 });
    const { sets } = this;
    visit(program.body, (node) => {
      for (const name of namesSet(node)) sets.set(name, (sets.get(name) ?? 0) + 1);
    });
    visit(program.body, (node) => {
      if (node.op === 'BlockIndices')
        for (const [dim, name] of node.outputs.entries()) {
          const size = program.grid[dim];
          this.set(name, sets, { low: 0, high: size ? this.of(size).high - 1 : INFINITE, divisor: 1 });
        }
      if (node.op === 'for') {
        const start = this.of(node.start);
        this.set(node.variable, sets, {
          low: start.low,
          high: this.of(node.end).high - 1,
          divisor: gcd(start.divisor, node.step),
        });
      }
      if (node.op === 'assign') this.set(node.name, sets, this.of(node.value));
    });
  }

  private set(name: string, sets: ReadonlyMap<string, number>, known: Known): void {
    const before = this.known.get(name);
    if ((sets.get(name) ?? 0) <= 1) this.known.set(name, known);
    // A name of several loops: what holds in all of them, as long as each is a loop of its own.
    else if (before === undefined) this.known.set(name, UNKNOWN);
  }

  /** Runs `inner` with the facts of a condition: for `name < number`, the name is less. */
  within(condition: Expr, inner: () => void): void {
    const bound = condition.kind === 'binary' && condition.op === '<' ? this.of(condition.b).high : INFINITE;
    const often =
      condition.kind === 'binary' && condition.a.kind === 'name' ? (this.sets.get(condition.a.name) ?? 0) : 0;
    // What is set again may be anything.
    if (condition.kind !== 'binary' || condition.a.kind !== 'name' || bound === INFINITE || often > 1) {
      inner();
      return;
    }
    const { name } = condition.a;
    const before = this.of(condition.a);
    this.known.set(name, { ...before, high: Math.min(before.high, bound - 1) });
    inner();
    this.known.set(name, before);
  }

  of(expr: Expr): Known {
    switch (expr.kind) {
      case 'number':
        return exactly(expr.value);
      case 'name':
        return this.known.get(expr.name) ?? UNKNOWN;
      case 'unary': {
        const a = this.of(expr.a);
        return expr.op === '-' ? { low: -a.high, high: -a.low, divisor: a.divisor } : { low: 0, high: 1, divisor: 1 };
      }
      case 'binary':
        return combine(expr.op, this.of(expr.a), this.of(expr.b));
      case 'call': {
        const all = expr.args.map((arg) => this.of(arg));
        const pick = expr.name === 'min' ? Math.min : Math.max;
        return {
          low: pick(...all.map((each) => each.low)),
          high: pick(...all.map((each) => each.high)),
          divisor: all.reduce((d, each) => gcd(d, each.divisor), 0),
        };
      }
      default:
        return UNKNOWN;
    }
  }
}

function combine(op: (Expr & { kind: 'binary' })['op'], a: Known, b: Known): Known {
  const both = gcd(a.divisor, b.divisor);
  switch (op) {
    case '+':
      return { low: a.low + b.low, high: a.high + b.high, divisor: both };
    case '-':
      return { low: a.low - b.high, high: a.high - b.low, divisor: both };
    case '*': {
      const ends = [a.low * b.low, a.low * b.high, a.high * b.low, a.high * b.high].map((v) =>
        Number.isNaN(v) ? 0 : v,
      );
      return { low: Math.min(...ends), high: Math.max(...ends), divisor: a.divisor * b.divisor };
    }
    case '/': {
      if (b.low !== b.high || b.low <= 0 || a.low < 0) return UNKNOWN;
      const divides = a.divisor % b.low === 0;
      return {
        low: Math.trunc(a.low / b.low),
        high: Math.trunc(a.high / b.low),
        divisor: divides ? a.divisor / b.low : 1,
      };
    }
    case '%':
      if (b.low !== b.high || b.low <= 0 || a.low < 0) return UNKNOWN;
      return { low: 0, high: Math.min(a.high, b.low - 1), divisor: both };
    default:
      return { low: 0, high: 1, divisor: 1 };
  }
}

function namesSet(node: Node): readonly string[] {
  if (node.op === 'BlockIndices') return node.outputs;
  if (node.op === 'for') return [node.variable];
  return node.op === 'assign' ? [node.name] : [];
}

/** Calls `see` with every statement, in order, those in blocks too. */
export function visit(nodes: readonly Node[], see: (node: Node) => void): void {
  for (const node of nodes) {
    see(node);
    if (node.op === 'if') {
      visit(node.body, see);
      visit(node.otherwise, see);
    }
    if (node.op === 'for' || node.op === 'while') visit(node.body, see);
  }
}
