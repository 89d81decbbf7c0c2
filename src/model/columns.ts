import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';

/** Neighbouring columns of a matrix [T, ...], from `first` on: what a linear of several parts made for one of them. */
export interface Columns {
  readonly of: Tensor;
  readonly first: number;
}

/** Whether the matrix has no other columns. */
export function standsAlone({ of }: Columns, width: number): boolean {
  return of.shape[1] === width;
}

/** For an operation's parameter: where the columns begin, and nothing where there are no others. */
export function firstOf(columns: Columns, width: number): number | undefined {
  return standsAlone(columns, width) ? undefined : columns.first;
}

/** The columns as a matrix [T, width] of their own: a view where there are no others, else a copy. The caller disposes of it. */
export function apart(rt: NativeRuntime, columns: Columns, width: number): Tensor {
  const { of, first } = columns;
  if (standsAlone(columns, width)) return of.view(of.shape);
  const y = rt.allocate(of.dtype, [of.shape[0] as number, width]);
  ops.sliceColumns(rt, of, y, { first });
  return y;
}
