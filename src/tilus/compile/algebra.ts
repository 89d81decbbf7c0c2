import { canonical } from '../../layout/canonical.js';
import type { Layout } from '../../layout/layout.js';
import { type Part, takeApart } from '../../layout/parts.js';
import { layoutKey } from '../check/layout-map.js';

interface Factor {
  readonly kind: 'local' | 'spatial' | 'replicate';
  /** One size a dimension. */
  readonly sizes: number[];
  readonly column: boolean;
}

/** A layout as a product of the paper's primitives, such as column_local(2, 2).spatial(8, 4).local(1, 2). */
export function algebra(layout: Layout): string {
  const parts = takeApart(canonical(layout));
  const factors: Factor[] = [];
  const rank = layout.shape.length;
  const peel = (list: Part[], kind: 'local' | 'spatial'): boolean => {
    const part = list.at(-1);
    if (!part) return false;
    const dim = parts.dims.findIndex((each) => each.at(-1) === part);
    const replica = !parts.dims.some((each) => each.includes(part));
    if (dim < 0 && !replica) return false;
    list.pop();
    if (dim >= 0) parts.dims[dim]!.pop();
    const sizes = Array.from({ length: replica ? 1 : rank }, (_, i) => (replica || i === dim ? part.size : 1));
    factors.unshift({ kind: replica ? 'replicate' : kind, sizes, column: false });
    return true;
  };
  // One kind as long as it goes, then the other.
  for (let peeled = true; peeled; ) {
    peeled = false;
    while (peel(parts.local, 'local')) peeled = true;
    while (peel(parts.spatial, 'spatial')) peeled = true;
  }
  if (parts.local.length + parts.spatial.length > 0) return `layout ${layoutKey(layout)}`;
  const text = joined(factors).map(({ kind, sizes, column }) => {
    const rankToo = kind === 'replicate' && rank !== 2 ? `, ${rank}` : '';
    return `${column ? 'column_' : ''}${kind}(${sizes.join(', ')}${rankToo})`;
  });
  return text.length > 0 ? text.join('.') : `local(${layout.shape.join(', ')})`;
}

/** Neighbours that one primitive covers: a row-major one, or in the opposite order a column-major one. */
function joined(factors: readonly Factor[]): Factor[] {
  const out: Factor[] = [];
  for (const factor of factors) {
    const before = out.at(-1);
    const dims = (of: Factor): number[] => of.sizes.flatMap((size, i) => (size > 1 ? [i] : []));
    if (before?.kind === factor.kind && factor.kind !== 'replicate') {
      const [a, b] = [dims(before), dims(factor)];
      const sizes = before.sizes.map((size, i) => size * factor.sizes[i]!);
      if (!before.column && Math.max(...a) < Math.min(...b)) {
        out[out.length - 1] = { ...before, sizes };
        continue;
      }
      if ((before.column || a.length === 1) && Math.min(...a) > Math.max(...b)) {
        out[out.length - 1] = { ...before, sizes, column: true };
        continue;
      }
    }
    out.push(factor);
  }
  return out;
}
