import { LpqError } from '../../core/error.js';
import type { MemoryLayout } from '../../layout/memory.js';
import { cometWeight } from '../../pack/layouts/comet.js';
import { marlinWeight } from '../../pack/layouts/marlin.js';
import { columnStreams, rowStreams } from '../../pack/layouts/stream.js';
import { tilusWeight } from '../../pack/layouts/tilus.js';
import { turbomindWeight } from '../../pack/layouts/turbomind.js';

interface Kind {
  readonly bits: readonly number[];
  /** N and K are multiples of these. */
  readonly unit: readonly [number, number];
  make(n: number, k: number, bits: number): MemoryLayout;
}

const from = (first: number): number[] => [1, 2, 3, 4, 5, 6, 7, 8].slice(first - 1);
const width = (bits: number) => bits as 4 | 8;

/** Weight layouts by the names of targets. */
const KINDS: Readonly<Record<string, Kind>> = {
  tilus: { bits: from(1), unit: [32, 128], make: tilusWeight },
  marlin: { bits: [4, 8], unit: [64, 16], make: (n, k, bits) => marlinWeight(n, k, width(bits)) },
  turbomind: { bits: [4, 8], unit: [32, 32], make: (n, k, bits) => turbomindWeight(n, k, width(bits), 'b') },
  comet: { bits: [4], unit: [16, 128], make: cometWeight },
  gptq: { bits: from(2), unit: [1, 32], make: columnStreams },
  'compressed-tensors': { bits: from(1), unit: [1, 32], make: rowStreams },
};

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
  const known = Object.keys(KINDS);
  return text
    .split(',')
    .map((item) => item.trim())
    .flatMap((item) => (item === 'all' ? known : [item]))
    .flatMap((item) => {
      const [, name = '', only] = /^(.*?)(?:-([1-8]))?$/.exec(item) ?? [];
      const kind = Object.hasOwn(KINDS, name) ? KINDS[name] : undefined;
      const widths = kind?.bits.filter((bits) => only === undefined || bits === Number(only)) ?? [];
      if (!kind || widths.length === 0)
        throw new LpqError('LPQ_USAGE', `--layouts does not take '${item}'`, {
          got: item,
          expected: `all, ${known.map((each) => `${each}-${KINDS[each]!.bits.join('|')}`).join(', ')}`,
        });
      const [unitN, unitK] = kind.unit;
      if (n % unitN !== 0 || k % unitK !== 0)
        throw new LpqError('LPQ_USAGE', `--shape does not divide into tiles of ${name}`, {
          got: `${k}x${n}`,
          expected: `K a multiple of ${unitK}, N of ${unitN}`,
        });
      return widths.map((bits) => ({ layout: name, bits, memory: kind.make(n, k, bits) }));
    });
}
