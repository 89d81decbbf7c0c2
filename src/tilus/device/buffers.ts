import type { Program } from '../check/program.js';
import { visit } from '../compile/ranges.js';
import { evaluate } from '../interpret/evaluate.js';
import type { ElementType } from '../types.js';

/** What a program views at a pointer. */
export interface Buffer {
  readonly name: string;
  /** Of the view that spans most bytes. */
  readonly dtype: ElementType;
  readonly bytes: number;
  /** Whether the program stores there. */
  readonly written: boolean;
}

/** The memory of each pointer of a program, from its views, for a launch with these numbers. */
export function buffersOf(program: Program, scalars: ReadonlyMap<string, number>): Buffer[] {
  const found = new Map<string, Buffer>();
  const stored = new Set<string>();
  visit(program.body, (node) => {
    if ('to' in node && node.to.pointer !== undefined) stored.add(node.to.pointer);
    if (node.op !== 'ViewGlobal') return;
    const { pointer: name, dtype, shape } = node.out;
    if (name === undefined) return;
    const elements = shape.reduce((all, size) => all * evaluate(size, scalars), 1);
    const bytes = Math.ceil((elements * dtype.bits) / 8);
    if (bytes >= (found.get(name)?.bytes ?? 0)) found.set(name, { name, dtype, bytes, written: false });
  });
  return program.parameters
    .filter(({ pointer }) => pointer)
    .map(({ name, dtype }) => ({
      ...(found.get(name) ?? { name, dtype, bytes: 0, written: false }),
      written: stored.has(name),
    }));
}
