import { layoutMap } from '../check/layout-map.js';
import { pairs } from '../check/pairs.js';
import type { Instruction, RegisterTensor } from '../check/program.js';
import type { Expr } from '../language/ast.js';
import { encode } from '../types.js';
import { cast, dot, numbers, type Registers, rounded, view } from './registers.js';

/** What an instruction finds in the block that runs it. */
export interface Found {
  number(expr: Expr): number;
  held(tensor: RegisterTensor): Registers;
  fault(thread: number, what: string): never;
}

/** What an instruction on registers makes; undefined: registers that hold nothing yet. */
export function computed(node: Instruction, found: Found): Registers | undefined {
  switch (node.op) {
    case 'AllocateRegister': {
      if (node.init === undefined) return undefined;
      const { threads, locals } = layoutMap(node.out.layout);
      return new Uint32Array(threads * locals).fill(encode(node.out.dtype, found.number(node.init)));
    }
    case 'Cast':
      return ordered(cast(node.a.dtype, node.out.dtype, found.held(node.a)), node.order);
    case 'View':
      return view(node.a, node.out, found.held(node.a));
    case 'Neg':
      return rounded(
        node.out.dtype,
        numbers(node.out.dtype, found.held(node.a)).map((value) => wrap(node.out, -value)),
      );
    case 'Dot':
      return dot(node.plan, [node.a, node.b, node.c], [found.held(node.a), found.held(node.b), found.held(node.c)]);
    case 'Add':
    case 'Sub':
    case 'Mul':
    case 'Div':
    case 'Mod':
      return arithmetic(node, found);
    default:
      return undefined;
  }
}

/** Elements of each thread in another order. */
function ordered(held: Registers, order: Int32Array | undefined): Registers {
  if (!order) return held;
  return held.map((_, i) => held[i - (i % order.length) + order[i % order.length]!]!);
}

function arithmetic(
  node: Instruction & { a: RegisterTensor; b: RegisterTensor; out: RegisterTensor },
  found: Found,
): Registers {
  const { dtype, layout } = node.out;
  const of = pairs(node.a.layout, node.b.layout)!;
  const { locals } = layoutMap(layout);
  const each = layoutMap(node.b.layout).locals;
  const a = numbers(dtype, found.held(node.a));
  const b = numbers(dtype, found.held(node.b));
  const whole = dtype.kind === 'int';
  const out = a.map((x, i) => {
    const y = b[Math.floor(i / locals) * each + of[i % locals]!]!;
    if (whole && y === 0 && (node.op === 'Div' || node.op === 'Mod'))
      found.fault(Math.floor(i / locals), 'divides by 0');
    if (node.op === 'Mul' && whole) return Math.imul(x, y);
    return wrap(node.out, operate(node.op as 'Add', x, y, whole));
  });
  return rounded(dtype, out);
}

function operate(op: 'Add' | 'Sub' | 'Mul' | 'Div' | 'Mod', x: number, y: number, whole: boolean): number {
  switch (op) {
    case 'Add':
      return x + y;
    case 'Sub':
      return x - y;
    case 'Mul':
      return x * y;
    case 'Div':
      return whole ? Math.trunc(x / y) : x / y;
    case 'Mod':
      return x % y;
  }
}

/** Integers wrap, as on the device. */
function wrap(tensor: RegisterTensor, value: number): number {
  return tensor.dtype.kind === 'int' ? value | 0 : value;
}
