import type { Tensor } from '../check/program.js';
import { printExpr } from '../language/expressions.js';
import { algebra } from './algebra.js';
import type { Unit } from './unit.js';

/** Lines above a kernel: its grid, its constants, its shared memory. */
export function headerOf({ program }: Unit): string[] {
  const constants = [...program.constants].filter(([, value]) => !value.startsWith('layout'));
  return [
    `// ${program.name}<${program.grid.map((each) => printExpr(each)).join(', ')}>, ${program.threads} threads a block, written by lpq tilus compile.`,
    ...wrapped(constants.map(([name, value]) => `${name} = ${value}`)),
    ...program.shared.places.map(({ tensor, byte }) => `// shared memory, byte ${byte}: ${describe(tensor)}`),
  ];
}

/** Items between commas in comments of at most 110 columns. */
function wrapped(items: readonly string[]): string[] {
  const lines: string[] = [];
  for (const item of items) {
    const longer = `${lines.at(-1) ?? '//'} ${item},`;
    if (lines.length > 0 && longer.length <= 110) lines[lines.length - 1] = longer;
    else lines.push(`// ${item},`);
  }
  return lines.map((line, i) => (i === lines.length - 1 ? line.replace(/,$/, '') : line));
}

/** f16[16, 8]: column_local(2, 2).spatial(8, 4).local(1, 2). */
export function describe(tensor: Tensor): string {
  if (tensor.scope === 'register')
    return `${tensor.name}: ${tensor.dtype.name}[${tensor.layout.shape.join(', ')}], ${algebra(tensor.layout)}`;
  const shape = tensor.shape.map((each) => printExpr(each)).join(', ');
  return `${tensor.name}: ${tensor.dtype.name}[${shape}]${tensor.swizzle ? ', swizzled' : ''}`;
}
