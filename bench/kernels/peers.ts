import type { GemmShape } from './cases.js';

interface PeerFigures {
  readonly name: string;
  /** Where the figures come from. */
  readonly source: string;
  /** Devices of which they are, by name. */
  readonly device: RegExp;
  readonly type: string;
  readonly group: number;
  readonly tokens: readonly number[];
  readonly rows: readonly { readonly k: number; readonly n: number; readonly us: readonly number[] }[];
}

/** Products of kernels that do not run here, as they were measured: weights past L2, graph replay, fp16 activations. */
const MARLIN: PeerFigures = {
  name: 'MARLIN',
  source:
    "MARLIN's own fp16 x int4 kernel, groups of 128, as measured on an H200 with weights past L2, replayed from a graph",
  device: /\bH200\b/,
  type: 'u4',
  group: 128,
  tokens: [1, 16, 32, 64, 128, 256, 1024, 4096],
  rows: [
    { k: 4096, n: 4096, us: [10.6, 10.9, 18.2, 24.0, 21.9, 28.7, 94.9, 389] },
    { k: 4096, n: 28672, us: [30.7, 31.5, 35.9, 51.1, 92.7, 175, 665, 2798] },
    { k: 14336, n: 4096, us: [20.9, 22.5, 33.8, 47.1, 61.7, 106, 316, 1339] },
    { k: 8192, n: 8192, us: [20.3, 19.4, 26.8, 37.5, 54.8, 101, 366, 1564] },
    { k: 8192, n: 57344, us: [101, 107, 128, 173, 323, 621, 2812, 10563] },
    { k: 28672, n: 8192, us: [68.4, 66.2, 84.4, 122, 218, 327, 1304, 5534] },
  ],
};

export interface PeerQuery extends GemmShape {
  readonly gpu: string | undefined;
  readonly type: string;
  readonly group: number;
  readonly m: number;
}

/** MARLIN's microseconds for the same product on the same class of device, where they are known: 4-bit types in groups of 128. */
export function marlinMicroseconds({ gpu, type, group, k, n, m }: PeerQuery): number | null {
  if (gpu === undefined || !MARLIN.device.test(gpu) || group !== MARLIN.group) return null;
  // Symmetric u4 and i4 are the same bytes of work to it.
  if (type !== MARLIN.type && type !== 'i4') return null;
  const row = MARLIN.rows.find((each) => each.k === k && each.n === n);
  return row?.us[MARLIN.tokens.indexOf(m)] ?? null;
}

export const MARLIN_SOURCE = MARLIN.source;
