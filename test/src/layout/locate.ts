import { LpqError } from '../../../src/core/error.js';
import { type Layout, modesOfDimensions } from '../../../src/layout/layout.js';

/** The inverse map: every thread that holds the element at `index` (ascending), and its place there. Throws LPQ_LAYOUT. */
export function locate(value: Layout, index: readonly number[]): { threads: number[]; local: number } {
  if (index.length !== value.shape.length)
    throw new LpqError('LPQ_LAYOUT', `an index of ${index.length} numbers was given for a layout of another rank`, {
      got: `[${index}]`,
      expected: `an index into [${value.shape}]`,
    });
  const digits = new Array<number>(value.modeShape.length).fill(0);
  modesOfDimensions(value.shape, value.modeShape).forEach((modes, dim) => {
    inRange(`index of dimension ${dim}`, index[dim]!, value.shape[dim]!);
    let rest = index[dim]!;
    for (const mode of modes.toReversed()) {
      digits[mode] = rest % value.modeShape[mode]!;
      rest = Math.floor(rest / value.modeShape[mode]!);
    }
  });
  let threads = [0];
  for (const mode of value.spatialModes) {
    const size = mode < 0 ? -mode : value.modeShape[mode]!;
    const choices = mode < 0 ? Array.from({ length: size }, (_, replica) => replica) : [digits[mode]!];
    threads = threads.flatMap((thread) => choices.map((digit) => thread * size + digit));
  }
  const local = value.localModes.reduce((at, mode) => at * value.modeShape[mode]! + digits[mode]!, 0);
  return { threads, local };
}

function inRange(what: string, value: number, size: number): void {
  if (!Number.isSafeInteger(value) || value < 0 || value >= size)
    throw new LpqError('LPQ_LAYOUT', `the ${what} ${value} lies outside the layout`, {
      got: value,
      expected: `0 .. ${size - 1}`,
    });
}
