import type { NativeRuntime, Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';

/** The elements of the parts one after another. */
export function oneAfterAnother(rt: NativeRuntime, parts: readonly Tensor[], shape: readonly number[]): Tensor {
  const flat = beside(rt, parts, 1);
  const whole = flat.view(shape);
  flat.dispose();
  return whole;
}

/** The parts below one another, along their first dimension: the tiles of an output feature are neighbours in memory. */
export function below(rt: NativeRuntime, parts: readonly Tensor[]): Tensor {
  const [, ...rest] = parts[0]!.shape;
  return oneAfterAnother(rt, parts, [parts.reduce((sum, { shape }) => sum + shape[0]!, 0), ...rest]);
}

/** The parts beside one another, as matrices of `rows` rows, [rows, ...]: the tiles of an input feature are neighbours. */
export function beside(rt: NativeRuntime, parts: readonly Tensor[], rows = parts[0]!.shape[0] as number): Tensor {
  const widths = parts.map(({ shape }) => shape.reduce((all, dim) => all * dim, 1) / rows);
  const y = rt.allocate(parts[0]!.dtype, [rows, widths.reduce((sum, width) => sum + width, 0)]);
  let first = 0;
  for (const [i, part] of parts.entries()) {
    const x = part.view([rows, widths[i]!]);
    ops.placeColumns(rt, x, y, { first });
    x.dispose();
    first += widths[i]!;
  }
  return y;
}
