import { indexAt, type Layout, localCount, threadCount } from '../../layout/layout.js';

/** A layout as a table: the coordinates of element `local` of `thread` at thread * locals + local, one array per dimension. */
export interface LayoutMap {
  readonly threads: number;
  readonly locals: number;
  readonly shape: readonly number[];
  readonly coordinates: readonly Int32Array[];
  /** Of each element, row-major. */
  readonly index: Int32Array;
  /** Of each thread, whether it is the first that holds its elements: the others are its replicas. */
  readonly first: Uint8Array;
}

const maps = new Map<string, LayoutMap>();
const mapOf = new WeakMap<Layout, LayoutMap>();

/** One text for a layout: its four attributes. */
export function layoutKey(value: Layout): string {
  return `${value.shape}|${value.modeShape}|${value.spatialModes}|${value.localModes}`;
}

/** The table of a layout. Layouts of one form share it. */
export function layoutMap(value: Layout): LayoutMap {
  const known = mapOf.get(value);
  if (known) return known;
  const key = layoutKey(value);
  let map = maps.get(key);
  if (!map) {
    if (maps.size > 500) maps.clear();
    map = tabulate(value);
    maps.set(key, map);
  }
  mapOf.set(value, map);
  return map;
}

function tabulate(value: Layout): LayoutMap {
  const threads = threadCount(value);
  const locals = localCount(value);
  const coordinates = value.shape.map(() => new Int32Array(threads * locals));
  const index = new Int32Array(threads * locals);
  // The map is a sum of what the thread says and what the local index says.
  const ofThread = Array.from({ length: threads }, (_, thread) => indexAt(value, thread, 0));
  const ofLocal = Array.from({ length: locals }, (_, local) => indexAt(value, 0, local));
  const first = new Uint8Array(threads);
  const seen = new Set<string>();
  for (const [thread, base] of ofThread.entries()) {
    const key = base.join();
    if (!seen.has(key)) first[thread] = 1;
    seen.add(key);
    for (const [local, step] of ofLocal.entries()) {
      let linear = 0;
      for (const [dim, size] of value.shape.entries()) {
        const at = base[dim]! + step[dim]!;
        coordinates[dim]![thread * locals + local] = at;
        linear = linear * size + at;
      }
      index[thread * locals + local] = linear;
    }
  }
  return { threads, locals, shape: value.shape, coordinates, index, first };
}

/** Whether two layouts are the same map. */
export function sameLayout(a: Layout, b: Layout): boolean {
  if (layoutKey(a) === layoutKey(b)) return true;
  const [x, y] = [layoutMap(a), layoutMap(b)];
  return (
    x.threads === y.threads &&
    x.locals === y.locals &&
    a.shape.length === b.shape.length &&
    a.shape.every((size, dim) => size === b.shape[dim]) &&
    x.index.every((at, i) => at === y.index[i])
  );
}

/** The tiles of a layout that are filled by an atom: h / g of the paper, section 4.2, as a table. */
export interface Quotient {
  /** Groups with the atom's number of threads: warps, if the atom belongs to an instruction. */
  readonly groups: number;
  /** Tiles of a group. */
  readonly tiles: number;
  /** The tile's coordinates, in tiles, at group * tiles + tile, one array per dimension. */
  readonly coordinates: readonly Int32Array[];
}

/** `value` / `atom` where value = f x atom for some f; else undefined. */
export function divide(value: Layout, atom: Layout): Quotient | undefined {
  const [whole, part] = [layoutMap(value), layoutMap(atom)];
  if (value.shape.length !== atom.shape.length) return undefined;
  if (whole.threads % part.threads !== 0 || whole.locals % part.locals !== 0) return undefined;
  if (value.shape.some((size, dim) => size % atom.shape[dim]! !== 0)) return undefined;
  const groups = whole.threads / part.threads;
  const tiles = whole.locals / part.locals;
  const coordinates = value.shape.map((_, dim) => {
    const out = new Int32Array(groups * tiles);
    for (let group = 0; group < groups; group++)
      for (let tile = 0; tile < tiles; tile++)
        out[group * tiles + tile] =
          whole.coordinates[dim]![group * part.threads * whole.locals + tile * part.locals]! / atom.shape[dim]!;
    return out;
  });
  for (let thread = 0; thread < whole.threads; thread++)
    for (let local = 0; local < whole.locals; local++) {
      const at = Math.floor(thread / part.threads) * tiles + Math.floor(local / part.locals);
      const inner = (thread % part.threads) * part.locals + (local % part.locals);
      for (const [dim, size] of atom.shape.entries())
        if (
          whole.coordinates[dim]![thread * whole.locals + local] !==
          coordinates[dim]![at]! * size + part.coordinates[dim]![inner]!
        )
          return undefined;
    }
  return { groups, tiles, coordinates };
}
