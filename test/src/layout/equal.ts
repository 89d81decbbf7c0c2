import { canonical } from '../../../src/layout/canonical.js';
import type { Layout } from '../../../src/layout/layout.js';

/** Whether two layouts are the same map. */
export function equal(a: Layout, b: Layout): boolean {
  const x = canonical(a);
  const y = canonical(b);
  const same = (p: readonly number[], q: readonly number[]): boolean =>
    p.length === q.length && p.every((value, i) => value === q[i]);
  return (
    same(x.shape, y.shape) &&
    same(x.modeShape, y.modeShape) &&
    same(x.spatialModes, y.spatialModes) &&
    same(x.localModes, y.localModes)
  );
}
