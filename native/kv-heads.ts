import type { NativeRuntime, Tensor } from './binding.js';
import { ops } from './ops.js';

/** How heads come, and how a cache holds them: dims, zeros behind headDim. */
export interface HeadDims {
  readonly headDim: number;
  readonly dims: number;
}

/** x [.., heads*headDim] as [.., heads*dims], zeros behind each head's own; a view where both are alike. The caller disposes of it. */
export function padHeads(rt: NativeRuntime, x: Tensor, { headDim, dims }: HeadDims): Tensor {
  if (dims === headDim) return x.view(x.shape);
  const shape = [...x.shape.slice(0, -1), ((x.shape.at(-1) as number) / headDim) * dims];
  const y = rt.allocate(x.dtype, shape);
  ops.zero(rt, y);
  moveHeads(rt, x, y, headDim, dims);
  return y;
}

/** Enqueues y [.., heads*headDim] = the own dims of each head of x [.., heads*dims]. */
export function cropHeads(rt: NativeRuntime, x: Tensor, y: Tensor, { headDim, dims }: HeadDims): void {
  moveHeads(rt, x, y, dims, headDim);
}

function moveHeads(rt: NativeRuntime, x: Tensor, y: Tensor, fromDim: number, toDim: number): void {
  const columns = x.shape.at(-1) as number;
  const rows = x.shape.slice(0, -1).reduce((all, each) => all * each, 1);
  const heads = columns / fromDim;
  const [from, to] = [x.view([rows, columns]), y.view([rows, heads * toDim])];
  const width = Math.min(fromDim, toDim);
  ops.copyHeads(rt, from, to, { heads, width, fromDim, from: 0, toDim, to: 0 });
  for (const view of [from, to]) view.dispose();
}
