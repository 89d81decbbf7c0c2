import type { Layout } from '../../layout/layout.js';
import { layoutMap } from './layout-map.js';

const known = new WeakMap<Layout, WeakMap<Layout, Int32Array | undefined>>();

/**
 * For element `local` of a, the same in every thread, the element of b with the same coordinates; b may have size 1 along a dimension.
 * Undefined if a thread holds an element of a without its element of b, or if threads differ.
 */
export function pairs(a: Layout, b: Layout): Int32Array | undefined {
  let ofA = known.get(a);
  if (!ofA) {
    ofA = new WeakMap();
    known.set(a, ofA);
  }
  if (!ofA.has(b)) ofA.set(b, find(a, b));
  return ofA.get(b);
}

function find(a: Layout, b: Layout): Int32Array | undefined {
  const [x, y] = [layoutMap(a), layoutMap(b)];
  if (a.shape.length !== b.shape.length || x.threads !== y.threads) return undefined;
  if (a.shape.some((size, dim) => b.shape[dim] !== size && b.shape[dim] !== 1)) return undefined;
  const index = (thread: number, local: number): number =>
    b.shape.reduce(
      (at, size, dim) => at * size + (size === 1 ? 0 : x.coordinates[dim]![thread * x.locals + local]!),
      0,
    );
  const found = new Int32Array(x.locals);
  for (let thread = 0; thread < x.threads; thread++) {
    const mine = new Map<number, number>();
    for (let local = y.locals - 1; local >= 0; local--) mine.set(y.index[thread * y.locals + local]!, local);
    for (let local = 0; local < x.locals; local++) {
      const at = mine.get(index(thread, local));
      if (at === undefined || (thread > 0 && found[local] !== at)) return undefined;
      found[local] = at;
    }
  }
  return found;
}
