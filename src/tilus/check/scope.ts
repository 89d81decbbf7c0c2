import { LpqError } from '../../core/error.js';
import { type Layout, localCount, threadCount } from '../../layout/layout.js';
import type { Expr } from '../language/ast.js';
import { printExpr } from '../language/expressions.js';
import type { ElementType } from '../types.js';
import { asExpr, fold, isType, Misfit, type Names, type Value } from './fold.js';
import { isLayout } from './functions.js';
import { layoutKey, sameLayout } from './layout-map.js';
import type { MemoryTensor, RegisterTensor, Tensor } from './program.js';

type Binding = Tensor | 'scalar';

/** Of a thread (CUDA C++ Programming Guide, "Compute Capabilities"). */
const REGISTERS = 255;

/** A statement at hand, for refusals. */
export interface Where {
  readonly line: number;
  readonly text: string;
}

/** A refusal of a program: names the line and the instruction. */
export function refuse(
  where: Where,
  sentence: string,
  facts: { got?: string; expected?: string; hint?: string } = {},
): never {
  throw new LpqError('LPQ_TILUS', `line ${where.line}, ${where.text}: ${sentence}`, facts);
}

/** Names of a program while it is checked: constants, scalars and tensors of the blocks around a statement. */
export class Scope implements Names {
  private readonly blocks: Map<string, Binding>[] = [new Map()];
  private ids = 0;
  threads: number | undefined;

  constructor(
    readonly constants: Map<string, Value>,
    readonly arch: number = 80,
  ) {}

  scalar(name: string): boolean {
    return this.find(name) === 'scalar';
  }
  find(name: string): Binding | undefined {
    return this.blocks.findLast((block) => block.has(name))?.get(name);
  }
  addScalar(name: string, where: Where): boolean {
    const known = this.find(name);
    if (known !== undefined && known !== 'scalar') refuse(where, `${name} is a tensor and cannot become a number`);
    if (known === undefined) this.blocks.at(-1)!.set(name, 'scalar');
    return known === undefined;
  }
  /** Names that `inner` makes end with it. */
  block<T>(inner: () => T): T {
    this.blocks.push(new Map());
    try {
      return inner();
    } finally {
      this.blocks.pop();
    }
  }

  /** The target of an assignment of a register tensor: the tensor of that name and type, or a new one. */
  register(name: string, dtype: ElementType, layout: Layout, where: Where): RegisterTensor {
    this.spread(dtype, layout, where);
    const known = this.find(name);
    if (known === 'scalar') refuse(where, `${name} is a number and cannot become a tensor`);
    if (known?.scope === 'register' && known.dtype === dtype && sameLayout(known.layout, layout)) return known;
    if (known !== undefined && !this.blocks.at(-1)!.has(name))
      refuse(where, `${name} was made outside of this block and cannot change its type in it`, {
        got: `${dtype.name}[${layout.shape}]`,
        expected: typeOf(known),
        hint: 'Give the new tensor another name.',
      });
    const made = { scope: 'register', id: this.ids++, name, dtype, layout } as const;
    this.blocks.at(-1)!.set(name, made);
    return made;
  }
  memory(name: string, tensor: Omit<MemoryTensor, 'id' | 'name'>, where: Where): MemoryTensor {
    if (this.find(name) !== undefined) refuse(where, `${name} exists already; memory is allocated once`, { got: name });
    const made = { ...tensor, id: this.ids++, name };
    this.blocks.at(-1)!.set(name, made);
    return made;
  }
  /** All layouts of a program have the threads of a block. */
  private spread(dtype: ElementType, layout: Layout, where: Where): void {
    const threads = threadCount(layout);
    this.threads ??= threads;
    if (threads !== this.threads)
      refuse(where, `the layout has ${threads} threads, and other layouts of the program have ${this.threads}`, {
        got: layoutKey(layout),
        hint: 'replicate(r) makes r threads hold the same elements.',
      });
    const words = Math.ceil((localCount(layout) * dtype.bits) / 32);
    if (words > REGISTERS)
      refuse(where, `a thread has ${REGISTERS} registers, and would hold ${words} words of this tensor`, {
        hint: 'Use a smaller tile, or more threads.',
      });
    if (threads % 32 !== 0 || threads > 1024)
      refuse(where, `a block has a multiple of 32 threads and at most 1024, not ${threads}`, {
        expected: '32, 64, ... 1024',
      });
  }

  value(expr: Expr, where: Where): Value {
    try {
      return fold(expr, this);
    } catch (misfit) {
      if (misfit instanceof Misfit)
        refuse(where, misfit.message, {
          got: misfit.got,
          ...(misfit.expected !== undefined && { expected: misfit.expected }),
        });
      if (misfit instanceof LpqError && misfit.code === 'LPQ_LAYOUT')
        refuse(where, misfit.message, { got: String(misfit.got) });
      throw misfit;
    }
  }
  number(expr: Expr, where: Where): Expr {
    const value = this.real(expr, where);
    if (hasReal(value)) refuse(where, 'scalars are integers', { got: printExpr(value) });
    return value;
  }
  /** Initial values of registers. */
  real(expr: Expr, where: Where): Expr {
    const value = this.value(expr, where);
    try {
      return asExpr(value, expr);
    } catch {
      return refuse(where, 'this must be a number', { got: printExpr(expr) });
    }
  }
  constant(expr: Expr, where: Where): number {
    const value = this.value(expr, where);
    if (typeof value !== 'number')
      refuse(where, 'this must be a number that is known before the launch', { got: printExpr(expr) });
    return value;
  }
  type(expr: Expr, where: Where): ElementType {
    const value = this.value(expr, where);
    if (!isType(value))
      refuse(where, 'this must be a type', { got: printExpr(expr), expected: 'f16, u4, f6e3m2, ...' });
    return value;
  }
  layout(expr: Expr, where: Where): Layout {
    let value = this.value(expr, where);
    if (Array.isArray(value) && value.length === 1) value = value[0] as Value;
    if (!isLayout(value))
      refuse(where, 'this must be a layout', { got: printExpr(expr), expected: 'local(..).spatial(..)' });
    return value;
  }
  tensor(expr: Expr, where: Where): Tensor {
    const found = expr.kind === 'name' ? this.find(expr.name) : undefined;
    if (found === undefined || found === 'scalar')
      refuse(where, `there is no tensor ${printExpr(expr)} here`, {
        hint: 'Names that a block makes end with the block.',
      });
    return found;
  }
  registers(expr: Expr, where: Where): RegisterTensor {
    const tensor = this.tensor(expr, where);
    if (tensor.scope !== 'register')
      refuse(where, `${tensor.name} is in ${tensor.scope} memory`, { expected: 'a tensor of registers' });
    return tensor;
  }
  inMemory(expr: Expr, scope: MemoryTensor['scope'], where: Where): MemoryTensor {
    const tensor = this.tensor(expr, where);
    if (tensor.scope !== scope)
      refuse(where, `${tensor.name} is in ${tensor.scope === 'register' ? 'registers' : `${tensor.scope} memory`}`, {
        expected: `a tensor in ${scope} memory`,
      });
    return tensor;
  }
}

/** Whether a number with a point stands in an expression. */
function hasReal(expr: Expr): boolean {
  if (expr.kind === 'number') return expr.real === true;
  if (expr.kind === 'binary') return hasReal(expr.a) || hasReal(expr.b);
  if (expr.kind === 'unary') return hasReal(expr.a);
  return expr.kind === 'call' && expr.args.some(hasReal);
}

/** f16[16, 8], for messages. */
export function typeOf(tensor: Tensor | 'scalar'): string {
  if (tensor === 'scalar') return 'a number';
  const shape = tensor.scope === 'register' ? tensor.layout.shape : tensor.shape.map((each) => printExpr(each));
  return `${tensor.dtype.name}[${shape.join(', ')}]`;
}
