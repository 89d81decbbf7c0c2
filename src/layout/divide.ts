import { LpqError } from '../core/error.js';
import { canonical } from './canonical.js';
import type { Layout } from './layout.js';
import { assemble, type Part, type Parts, replacePart, takeApart } from './parts.js';

/** h / g: the f with f x g = h (as maps). Throws LPQ_LAYOUT when there is none. */
export function divide(h: Layout, g: Layout): Layout {
  return cut(h, g, 'right');
}

/** f \ h: the g with f x g = h (as maps). Throws LPQ_LAYOUT when there is none. */
export function leftDivide(h: Layout, f: Layout): Layout {
  return cut(h, f, 'left');
}

/**
 * In canonical forms a product's lists are f's and then g's, but for one merge at each seam: the last mode of f and the
 * first of g may have become one. So the divisor's modes must be found at the end (right) or the start (left) of every
 * dimension and list, and only its mode next to the seam may be a factor of a larger one, which is then split.
 */
function cut(whole: Layout, divisor: Layout, side: 'left' | 'right'): Layout {
  const fail = (why: string): never => {
    throw new LpqError(
      'LPQ_LAYOUT',
      `a layout of [${whole.shape}] cannot be divided by one of [${divisor.shape}]: ${why}`,
    );
  };
  if (whole.shape.length !== divisor.shape.length) fail('their ranks differ');
  const h = takeApart(canonical(whole));
  const g = takeApart(canonical(divisor));
  const matched = new Map<Part, Part>();
  // Pairs lists from the far end to the seam.
  const pair = (mine: () => readonly Part[], theirs: readonly Part[], wanted: (part: Part) => boolean): void => {
    for (let step = 0; step < theirs.length; step++) {
      const part = far(theirs, step, side)!;
      if (!wanted(part)) continue;
      const found = far(mine(), step, side);
      if (!found) fail('it has fewer modes');
      else if (found.size === part.size) matched.set(part, found);
      else if (step === theirs.length - 1 && found.size % part.size === 0)
        matched.set(part, split(h, found, part.size, side));
      else fail(`a mode of ${found.size} stands where ${part.size} is needed`);
    }
  };
  g.dims.forEach((parts, dim) => {
    pair(
      () => h.dims[dim]!,
      parts,
      () => true,
    );
  });
  const owned = new Set(g.dims.flat());
  pair(
    () => h.spatial,
    g.spatial,
    (part) => !owned.has(part),
  );
  const inDims = new Set(h.dims.flat());
  for (const part of g.spatial)
    if (!owned.has(part) && inDims.has(matched.get(part)!)) fail('it has no replicas where the divisor has');
  const remain = (list: readonly Part[], theirs: readonly Part[], what: string): Part[] => {
    const at = side === 'right' ? list.length - theirs.length : 0;
    if (at < 0 || theirs.some((part, i) => matched.get(part) !== list[at + i]))
      fail(`its ${what} modes are nested otherwise`);
    return side === 'right' ? list.slice(0, at) : list.slice(theirs.length);
  };
  const used = new Set(matched.values());
  const rest: Parts = {
    spatial: remain(h.spatial, g.spatial, 'spatial'),
    local: remain(h.local, g.local, 'local'),
    dims: h.dims.map((parts) => parts.filter((part) => !used.has(part))),
  };
  return canonical(assemble(rest));
}

/** The element `step` places from the far end: the last for a right division, the first for a left one. */
function far(list: readonly Part[], step: number, side: 'left' | 'right'): Part | undefined {
  return side === 'right' ? list[list.length - 1 - step] : list[step];
}

/** Splits a part so that its far side has `size`, and returns that side. */
function split(parts: Parts, part: Part, size: number, side: 'left' | 'right'): Part {
  const wanted = { size };
  const other = { size: part.size / size };
  replacePart(parts, part, side === 'right' ? [other, wanted] : [wanted, other]);
  return wanted;
}
