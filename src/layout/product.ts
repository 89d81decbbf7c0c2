import { LpqError } from '../core/error.js';
import type { Layout } from './layout.js';
import { assemble, takeApart } from './parts.js';

/**
 * The Kronecker product, left to right: every element of f is a tile laid out as g,
 * h(t, i) = f(t / T_g, i / N_g) * S_g + g(t % T_g, i % N_g) (Tilus, section 4.2). `product(local(2, 1), spatial(8, 4))`
 * is the paper's local(2, 1).spatial(8, 4). Throws LPQ_LAYOUT when ranks differ.
 */
export function product(first: Layout, ...others: readonly Layout[]): Layout {
  return others.reduce((f, g) => {
    if (f.shape.length !== g.shape.length)
      throw new LpqError('LPQ_LAYOUT', 'layouts of different rank cannot be multiplied', {
        got: `[${f.shape}] and [${g.shape}]`,
        hint: 'Give the smaller one dimensions of size 1.',
      });
    const outer = takeApart(f);
    const inner = takeApart(g);
    return assemble({
      dims: outer.dims.map((parts, dim) => [...parts, ...inner.dims[dim]!]),
      spatial: [...outer.spatial, ...inner.spatial],
      local: [...outer.local, ...inner.local],
    });
  }, first);
}

/** The layout of the transposed tile: dimension d of the result is dimension order[d] of `value`. Throws LPQ_LAYOUT. */
export function permute(value: Layout, order: readonly number[]): Layout {
  if (order.length !== value.shape.length || order.toSorted((a, b) => a - b).some((axis, i) => axis !== i))
    throw new LpqError('LPQ_LAYOUT', 'a permutation names every dimension once', {
      got: `[${order}]`,
      expected: `0 .. ${value.shape.length - 1} in some order`,
    });
  const parts = takeApart(value);
  return assemble({ ...parts, dims: order.map((axis) => parts.dims[axis]!) });
}
