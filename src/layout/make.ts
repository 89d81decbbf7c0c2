import { type Layout, layout } from './layout.js';

/** All elements in one thread, row-major: local(2, 3) maps i to (i / 3, i % 3). */
export function local(...shape: number[]): Layout {
  return layout(shape, shape, [], axes(shape));
}

/** One element a thread, row-major: spatial(2, 3) maps t to (t / 3, t % 3). */
export function spatial(...shape: number[]): Layout {
  return layout(shape, shape, axes(shape), []);
}

/** As local, counted column-major: the first dimension runs fastest. */
export function columnLocal(...shape: number[]): Layout {
  return layout(shape, shape, [], axes(shape).reverse());
}

/** As spatial, counted column-major. */
export function columnSpatial(...shape: number[]): Layout {
  return layout(shape, shape, axes(shape).reverse(), []);
}

function axes(shape: readonly number[]): number[] {
  return shape.map((_, axis) => axis);
}
