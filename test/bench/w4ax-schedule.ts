import { mixture } from '../../bench/model/weights.js';

/**
 * How long a W4Ax product takes under the schedules of COMET (section 4.4, figures 8 and 10), where tiles of blocks with 8-bit
 * activations cost more than those with 4-bit ones: a count of tile costs, without memory, caches or launches. Costs are data, so that
 * a machine without INT4 tensor cores is cost4 = cost8.
 */
export interface Machine {
  readonly processors: number;
  /** Time of a tile of 128 x 128 x 128 whose block of activations has 4 bits, and 8; any unit. */
  readonly cost4: number;
  readonly cost8: number;
}

/** A100: 1248 TOPS of INT4 and 624 of INT8 (COMET, section 2.3). */
export const A100: Machine = { processors: 108, cost4: 1, cost8: 2 };

export interface Product {
  readonly m: number;
  readonly n: number;
  /** Bits of the activations in each block of 128 of k, in order. */
  readonly bits: readonly (4 | 8)[];
}

/** Times in the machine's unit. */
export interface Makespans {
  /** All blocks of 8 bits, a tile a multiprocessor, in waves. */
  readonly w4a8: number;
  /** Waves of tiles in order of k that wait for their slowest tile. */
  readonly naive: number;
  /** Tile remapping: as many tiles of either precision for every multiprocessor. */
  readonly remapped: number;
  /** Tile decomposition as well: idle multiprocessors take parts of tiles, so that all end together. */
  readonly decomposed: number;
  /** What gemm_mixed does with shared items: runs of equal cost, cut between blocks of k. */
  readonly cut: number;
}

const TILE = 128;

export function makespans({ m, n, bits }: Product, { processors, cost4, cost8 }: Machine): Makespans {
  const slice = Math.ceil(m / TILE) * Math.ceil(n / TILE); // tiles of one block of k
  const costs = bits.map((b) => (b === 4 ? cost4 : cost8));
  const tiles = slice * bits.length;
  const eights = slice * bits.filter((b) => b === 8).length;
  let naive = 0;
  for (let first = 0; first < tiles; first += processors) {
    const last = Math.min(first + processors, tiles) - 1;
    naive += Math.max(...costs.slice(Math.floor(first / slice), Math.floor(last / slice) + 1));
  }
  const waves = (count: number) => Math.ceil(count / processors);
  const total = eights * cost8 + (tiles - eights) * cost4;
  return {
    w4a8: waves(tiles) * cost8,
    naive,
    remapped: waves(eights) * cost8 + waves(tiles - eights) * cost4,
    decomposed: total / processors,
    cut: longestRun(costs, slice, processors),
  };
}

/** The largest cost of a run of steps when `items` tiles, each all of k, are cut at the steps that begin at or after equal shares. */
function longestRun(costs: readonly number[], items: number, processors: number): number {
  const prefix = [0];
  for (const cost of costs) prefix.push((prefix.at(-1) as number) + cost);
  const each = prefix.at(-1) as number;
  let [longest, before] = [0, 0];
  for (let unit = 1; unit <= processors; unit++) {
    const share = (each * items * unit) / processors;
    const item = Math.floor(share / each);
    const inside = prefix.find((cost) => cost >= share - item * each - 1e-9) as number;
    const end = item * each + inside;
    longest = Math.max(longest, end - before);
    before = end;
  }
  return longest;
}

/** Linears [N, K] of a decoder layer, qkv and gate with up as one. */
export const LINEARS = {
  'LLaMA-3-8B': [
    [6144, 4096],
    [4096, 4096],
    [28672, 4096],
    [4096, 14336],
  ],
  'LLaMA-3-70B': [
    [10240, 8192],
    [8192, 8192],
    [57344, 8192],
    [8192, 28672],
  ],
} as const;

/**
 * Speedups over W4A8 of a model's linears, geometric means over its shapes, M = 16, 64 and 256 and 16 mixtures with three quarters of
 * 4-bit blocks: COMET's ablation (section 6.4).
 */
export function ablation(
  model: keyof typeof LINEARS,
  machine: Machine = A100,
): Record<Exclude<keyof Makespans, 'w4a8'>, number> {
  const logs = { naive: 0, remapped: 0, decomposed: 0, cut: 0 };
  let count = 0;
  for (const [n, k] of LINEARS[model])
    for (const m of [16, 64, 256])
      for (let seed = 1; seed <= 16; seed++) {
        const times = makespans({ m, n, bits: mixture(k / TILE, 0.75, seed) }, machine);
        for (const key of ['naive', 'remapped', 'decomposed', 'cut'] as const)
          logs[key] += Math.log(times.w4a8 / times[key]);
        count++;
      }
  const mean = (log: number) => Math.exp(log / count);
  return {
    naive: mean(logs.naive),
    remapped: mean(logs.remapped),
    decomposed: mean(logs.decomposed),
    cut: mean(logs.cut),
  };
}
