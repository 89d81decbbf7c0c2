import { LpqError } from '../core/error.js';

/**
 * A register layout: how the elements of a tile lie in the threads of a warp or block (Tilus, sections 4 and 5).
 *
 * Each dimension of `shape` factors into consecutive entries of `modeShape`, most significant first. `spatialModes` and
 * `localModes` list the modes that make up the thread index and the index into a thread's own elements, most significant
 * first; together they name every mode once. A negative spatial mode -r stands for r replicas: threads that differ only
 * there hold the same element. Values are frozen; make them with `layout`, `local`, `spatial` or a product.
 */
export interface Layout {
  readonly shape: readonly number[];
  readonly modeShape: readonly number[];
  readonly spatialModes: readonly number[];
  readonly localModes: readonly number[];
  /** Threads that hold one element: the product of the replicas, 1 without any. */
  readonly replication: number;
}

/** Checks the parts and freezes them into a layout. Throws LPQ_LAYOUT. */
export function layout(
  shape: readonly number[],
  modeShape: readonly number[],
  spatialModes: readonly number[],
  localModes: readonly number[],
): Layout {
  const facts = { got: `shape [${shape}], modes [${modeShape}], spatial [${spatialModes}], local [${localModes}]` };
  for (const size of [...shape, ...modeShape])
    if (!Number.isSafeInteger(size) || size < 1)
      throw new LpqError('LPQ_LAYOUT', 'sizes of a layout are positive integers', facts);
  modesOfDimensions(shape, modeShape);
  const named = [...spatialModes.filter((mode) => mode >= 0), ...localModes].sort((a, b) => a - b);
  if (named.length !== modeShape.length || named.some((mode, i) => mode !== i))
    throw new LpqError('LPQ_LAYOUT', 'a layout must use every mode exactly once, as spatial or as local', facts);
  const replicas = spatialModes.filter((mode) => mode < 0);
  if (replicas.some((mode) => !Number.isSafeInteger(mode)))
    throw new LpqError('LPQ_LAYOUT', 'the number of replicas is an integer', facts);
  return Object.freeze({
    shape: Object.freeze([...shape]),
    modeShape: Object.freeze([...modeShape]),
    spatialModes: Object.freeze([...spatialModes]),
    localModes: Object.freeze([...localModes]),
    replication: replicas.reduce((all, mode) => all * -mode, 1),
  });
}

/** The modes that belong to each dimension. Throws LPQ_LAYOUT when the modes do not factor the dimensions in order. */
export function modesOfDimensions(shape: readonly number[], modeShape: readonly number[]): number[][] {
  let mode = 0;
  const owned = shape.map((size) => {
    const mine: number[] = [];
    let product = 1;
    while (product < size && mode < modeShape.length) {
      product *= modeShape[mode]!;
      mine.push(mode++);
    }
    if (product !== size)
      throw new LpqError('LPQ_LAYOUT', `the modes of a layout do not factor its dimension of ${size}`, {
        got: `shape [${shape}], modes [${modeShape}]`,
        expected: 'consecutive modes whose product is the dimension, for each dimension in order',
      });
    return mine;
  });
  // Modes of size 1 may trail; they belong anywhere, so give them to the last dimension.
  for (; mode < modeShape.length; mode++) {
    if (modeShape[mode] !== 1 || owned.length === 0)
      throw new LpqError('LPQ_LAYOUT', 'a layout has more modes than its dimensions factor into', {
        got: `shape [${shape}], modes [${modeShape}]`,
      });
    owned.at(-1)!.push(mode);
  }
  return owned;
}

/** Size of a spatial entry: of the mode it names, or its number of replicas. */
export function spatialSize(value: Layout, mode: number): number {
  return mode < 0 ? -mode : value.modeShape[mode]!;
}

/** Threads the layout spreads over, replicas included. */
export function threadCount(value: Layout): number {
  return value.spatialModes.reduce((all, mode) => all * spatialSize(value, mode), 1);
}

/** Elements each thread holds. */
export function localCount(value: Layout): number {
  return value.localModes.reduce((all, mode) => all * value.modeShape[mode]!, 1);
}

/** The logical index of element `local` of thread `thread`. Throws LPQ_LAYOUT outside the layout's range. */
export function indexAt(value: Layout, thread: number, local: number): number[] {
  inRange('thread', thread, threadCount(value));
  inRange('local element', local, localCount(value));
  const digits = new Array<number>(value.modeShape.length).fill(0);
  let rest = thread;
  for (const mode of value.spatialModes.toReversed()) {
    const size = spatialSize(value, mode);
    if (mode >= 0) digits[mode] = rest % size;
    rest = Math.floor(rest / size);
  }
  rest = local;
  for (const mode of value.localModes.toReversed()) {
    digits[mode] = rest % value.modeShape[mode]!;
    rest = Math.floor(rest / value.modeShape[mode]!);
  }
  return modesOfDimensions(value.shape, value.modeShape).map((modes) =>
    modes.reduce((index, mode) => index * value.modeShape[mode]! + digits[mode]!, 0),
  );
}

function inRange(what: string, value: number, size: number): void {
  if (!Number.isSafeInteger(value) || value < 0 || value >= size)
    throw new LpqError('LPQ_LAYOUT', `the ${what} ${value} lies outside the layout`, {
      got: value,
      expected: `0 .. ${size - 1}`,
    });
}
