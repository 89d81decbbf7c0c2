import { LpqError, notTaken } from '../../src/core/error.js';
import type { MemoryLayout } from '../../src/layout/memory.js';
import { PACK_LAYOUTS } from '../../src/pack/layouts/index.js';

export interface PackCase {
  readonly layout: string;
  readonly bits: number;
  readonly memory: MemoryLayout;
}

/**
 * --layouts: names, with a width (tilus-4) or all they have. Throws LPQ_USAGE for what is none, or where N x K does not
 * divide into its tiles.
 */
export function packCases(text: string, n: number, k: number): PackCase[] {
  const kinds = new Map(PACK_LAYOUTS.flatMap(({ name, memory }) => (memory ? [[name, memory] as const] : [])));
  const known = [...kinds.keys()];
  return text
    .split(',')
    .map((item) => item.trim())
    .flatMap((item) => (item === 'all' ? known : [item]))
    .flatMap((item) => {
      const [, name = '', only] = /^(.*?)(?:-([1-8]))?$/.exec(item) ?? [];
      const kind = kinds.get(name);
      const widths = kind?.bits.filter((bits) => only === undefined || bits === Number(only)) ?? [];
      if (!kind || widths.length === 0)
        throw notTaken(
          '--layouts',
          item,
          `all, ${known.map((each) => `${each}-${kinds.get(each)!.bits.join('|')}`).join(', ')}`,
        );
      const [unitN, unitK] = kind.unit;
      if (n % unitN !== 0 || k % unitK !== 0)
        throw new LpqError('LPQ_USAGE', `--shape does not divide into tiles of ${name}`, {
          got: `${k}x${n}`,
          expected: `K a multiple of ${unitK}, N of ${unitN}`,
        });
      return widths.map((bits) => ({ layout: name, bits, memory: kind.of(n, k, bits) }));
    });
}
