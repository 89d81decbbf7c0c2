import type { Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { Tape, Value } from './tape.js';

/** `width` numbers from `from` on of each of `heads` heads of `fromDim`, side by side; x itself where that is all of it. */
export function headsOf(tape: Tape, x: Value, heads: number, fromDim: number, from: number, width: number): Value {
  if (from === 0 && width === fromDim) return x;
  const { rt } = tape;
  const y = rt.allocate('f32', [x.tensor.shape[0] as number, heads * width]);
  ops.copyHeads(rt, x.tensor, y, { heads, width, fromDim, from, toDim: width, to: 0 });
  return tape.record(tape.made(y, x.wanted), (dy) => {
    // Other parts go elsewhere in it, and what nothing reads has no gradient.
    if (!x.grad) {
      x.grad = tape.keep(rt.allocate('f32', x.tensor.shape));
      ops.zero(rt, x.grad);
    }
    ops.copyHeads(rt, dy, x.grad, { heads, width, fromDim: width, from: 0, toDim: fromDim, to: from });
  });
}

/** Parts of heads of `dim`, each put at `to`; a `shared` one is of all heads alike. */
export function joinHeads(
  tape: Tape,
  parts: readonly { readonly x: Value; readonly width: number; readonly to: number; readonly shared?: true }[],
  heads: number,
  dim: number,
): Value {
  const { rt } = tape;
  const tokens = parts[0]!.x.tensor.shape[0] as number;
  const y = rt.allocate('f32', [tokens, heads * dim]);
  for (const { x, width, to, shared } of parts)
    ops.copyHeads(rt, x.tensor, y, {
      ...{ heads, width, fromDim: width, from: 0, toDim: dim, to },
      ...(shared && { shared }),
    });
  const wanted = parts.some(({ x }) => x.wanted);
  return tape.record(tape.made(y, wanted), (dy) => {
    for (const { x, width, to, shared } of parts) {
      const part = tape.keep(rt.allocate('f32', x.tensor.shape));
      if (shared) sumHeads(tape, dy, part, heads, dim, to);
      else ops.copyHeads(rt, dy, part, { heads, width, fromDim: dim, from: to, toDim: width, to: 0 });
      x.grad = part;
    }
  });
}

/** The columns of `to` on of every head, added up in the order of heads. */
function sumHeads({ rt }: Tape, dy: Tensor, sum: Tensor, heads: number, dim: number, to: number): void {
  const each = rt.allocate('f32', sum.shape);
  for (let head = 0; head < heads; head++) {
    ops.sliceColumns(rt, dy, head === 0 ? sum : each, { first: head * dim + to });
    if (head > 0) ops.add(rt, sum, each, sum);
  }
  each.dispose();
}

/** Rows of x times numbers [T, 1] that nothing is trained through. */
export function weighedRows(tape: Tape, x: Value, scales: Tensor): Value {
  const { rt } = tape;
  const y = rt.allocate('f32', x.tensor.shape);
  ops.scaleRows(rt, x.tensor, scales, y);
  return tape.record(tape.made(y, x.wanted), (dy) => {
    ops.scaleRows(rt, dy, scales, dy);
    x.grad = dy;
  });
}
