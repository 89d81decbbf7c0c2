import { localCount, threadCount } from '../../layout/layout.js';
import { takeApart } from '../../layout/parts.js';
import type { Expr } from '../language/ast.js';
import { printExpr } from '../language/expressions.js';
import type { ElementType } from '../types.js';
import type { Call } from './instructions.js';
import type { MemoryMode, MemoryTensor, Place } from './program.js';
import { refuse } from './scope.js';

const number = (value: number): Expr => ({ kind: 'number', value });
const times = (a: Expr, b: Expr): Expr => {
  if (a.kind === 'number' && b.kind === 'number') return number(a.value * b.value);
  return { kind: 'binary', op: '*', a, b };
};

/** Shape and placement of a tensor in memory: row-major, or as a layout of one thread orders its elements. */
export function memoryModes(call: Call, dtype: ElementType, swizzle: boolean): Pick<MemoryTensor, 'shape' | 'modes'> {
  const list = call.args.get('shape')!;
  if (list.kind !== 'list' || list.items.length === 0)
    refuse(call, 'shape must be a list of sizes', { got: printExpr(list), expected: '[M, N]' });
  const shape = list.items.map((item) => call.scope.number(item, call));
  for (const size of shape)
    if (size.kind === 'number' && (!Number.isSafeInteger(size.value) || size.value < 1))
      refuse(call, 'sizes must be positive integers', { got: printExpr(size) });
  const order = call.args.get('layout');
  const modes = order ? laidOut(call, shape, order) : rowMajor(shape);
  const row = shape.at(-1)!;
  const bytes = row.kind === 'number' ? (row.value * dtype.bits) / 8 : 0;
  if (swizzle && (order !== undefined || (![16, 32, 64].includes(bytes) && (bytes === 0 || bytes % 128 !== 0))))
    refuse(call, 'swizzle takes row-major rows of 16, 32, 64 or a multiple of 128 bytes', {
      got: `rows of ${bytes} bytes`,
    });
  return { shape, modes };
}

function rowMajor(shape: readonly Expr[]): MemoryMode[][] {
  let stride = number(1);
  const modes: MemoryMode[][] = [];
  for (const size of shape.toReversed()) {
    modes.unshift([{ ...(size.kind === 'number' && { size: size.value }), stride }]);
    stride = times(stride, size);
  }
  return modes;
}

function laidOut(call: Call, shape: readonly Expr[], order: Expr): MemoryMode[][] {
  const layout = call.scope.layout(order, call);
  if (threadCount(layout) !== 1)
    refuse(call, 'a layout of memory must have one thread: its local index is the position', {
      got: `${threadCount(layout)} threads`,
    });
  if (
    layout.shape.length !== shape.length ||
    layout.shape.some((size, dim) => shape[dim]!.kind !== 'number' || (shape[dim] as { value: number }).value !== size)
  )
    refuse(call, 'the layout has another shape', {
      got: `[${layout.shape}]`,
      expected: `[${shape.map((each) => printExpr(each)).join(', ')}]`,
    });
  const parts = takeApart(layout);
  const strides = new Map<unknown, number>();
  let stride = localCount(layout);
  for (const part of parts.local) {
    stride /= part.size;
    strides.set(part, stride);
  }
  return parts.dims.map((list) => {
    const modes = list
      .filter((part) => part.size > 1)
      .map((part) => ({ size: part.size, stride: number(strides.get(part)!) }));
    return modes.length > 0 ? modes : [{ size: 1, stride: number(1) }];
  });
}

/** Where a tile of `shape` lies in a tensor; without slices in the offset along its last dimensions. */
export function place(call: Call, offset: Expr | undefined, tensor: MemoryTensor, shape: readonly number[]): Place {
  const rank = tensor.shape.length;
  if (shape.length > rank)
    refuse(call, `a tile of rank ${shape.length} does not fit ${tensor.name}, which has rank ${rank}`, {
      got: `[${shape}]`,
    });
  const last = Array.from({ length: shape.length }, (_, i) => rank - shape.length + i);
  if (offset === undefined)
    return within(call, tensor, shape, { offset: tensor.shape.map(() => number(0)), axes: last });
  if (offset.kind !== 'list' || offset.items.length !== rank)
    refuse(call, `an offset in ${tensor.name} has ${rank} numbers`, { got: printExpr(offset) });
  const sliced = offset.items.flatMap((item, axis) => (item.kind === 'slice' ? [axis] : []));
  if (sliced.length > 0 && sliced.length !== shape.length)
    refuse(call, `the tile has rank ${shape.length}, and ${sliced.length} dimensions of the offset are open`, {
      got: printExpr(offset),
    });
  const numbers = offset.items.map((item) => call.scope.number(item.kind === 'slice' ? item.start : item, call));
  return within(call, tensor, shape, { offset: numbers, axes: sliced.length > 0 ? sliced : last });
}

function within(call: Call, tensor: MemoryTensor, shape: readonly number[], at: Place): Place {
  for (const [i, axis] of at.axes.entries()) {
    const [size, start] = [tensor.shape[axis]!, at.offset[axis]!];
    if (size.kind !== 'number' || tensor.scope === 'global') continue;
    if (shape[i]! + (start.kind === 'number' ? start.value : 0) > size.value)
      refuse(call, `the tile reaches beyond dimension ${axis} of ${tensor.name}`, {
        got: `${shape[i]} from ${printExpr(start)} on`,
        expected: `at most ${size.value}`,
      });
  }
  return at;
}

/** The part of a shared tensor that a copy fills: all of it, or what at= leaves open. */
export function copied(call: Call, to: MemoryTensor): { at: Place; shape: number[] } {
  const sizes = to.shape.map((size) => (size as { value: number }).value);
  const at = call.args.get('at');
  if (at === undefined)
    return { at: { offset: sizes.map(() => number(0)), axes: sizes.map((_, axis) => axis) }, shape: sizes };
  if (at.kind !== 'list' || at.items.length !== sizes.length || !at.items.some((item) => item.kind === 'slice'))
    refuse(call, `at has ${sizes.length} numbers, and those of the copied dimensions end in ':'`, {
      got: printExpr(at),
    });
  const axes = at.items.flatMap((item, axis) => (item.kind === 'slice' ? [axis] : []));
  const offset = at.items.map((item) => call.scope.number(item.kind === 'slice' ? item.start : item, call));
  for (const axis of axes)
    if ((offset[axis] as { value?: number }).value !== 0)
      refuse(call, 'a copy must fill its dimensions from 0', { got: printExpr(at) });
  return { at: { offset, axes }, shape: axes.map((axis) => sizes[axis]!) };
}
