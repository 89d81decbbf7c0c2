import type { Layout } from './layout.js';
import { assemble, type Part, replacePart, takeApart } from './parts.js';

/**
 * The one form of all layouts with this map: no modes of size 1, and no two modes that could be one. Modes merge when
 * they are neighbours in a dimension and in the same list; replicas merge when neighbours in the list.
 *
 * Why it is unique: the seam of two neighbours in a list is a stride at which the map's step is not the next digit's
 * carry; such strides belong to the map, not to how it is written.
 */
export function canonical(value: Layout): Layout {
  const parts = takeApart(value);
  const keep = (part: Part): boolean => part.size > 1;
  parts.dims = parts.dims.map((list) => list.filter(keep));
  parts.spatial = parts.spatial.filter(keep);
  parts.local = parts.local.filter(keep);
  for (const which of ['spatial', 'local'] as const) {
    let i = 0;
    while (i + 1 < parts[which].length) {
      const upper = parts[which][i]!;
      const lower = parts[which][i + 1]!;
      if (!adjacent(parts.dims, upper, lower)) {
        i++;
        continue;
      }
      const merged = { size: upper.size * lower.size };
      replacePart(parts, lower, []);
      replacePart(parts, upper, [merged]);
    }
  }
  return assemble(parts);
}

function adjacent(dims: readonly Part[][], upper: Part, lower: Part): boolean {
  const home = dims.find((list) => list.includes(upper));
  if (!home) return !dims.some((list) => list.includes(lower)); // both are replicas
  return home.indexOf(lower) === home.indexOf(upper) + 1;
}
