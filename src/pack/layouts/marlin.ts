import { MMA_M16N8K16, reorderLocals, storedTile, WORD_75316420 } from '../../layout/fragment.js';
import type { Layout } from '../../layout/layout.js';
import { local } from '../../layout/make.js';
import { type PackLayout, packLayout, repeatTile } from '../../layout/memory.js';
import { permute, product } from '../../layout/product.js';

/**
 * What a warp of the MARLIN kernel holds of B: four 16x16 tiles side by side, [k, n] = [16, 64]; lane L's elements
 * 8j + v are the eight codes of its fragment in n-subtile j (MARLIN, section 3.4).
 */
export const MARLIN_WARP_TILE: Layout = product(local(1, 4), local(1, 2), MMA_M16N8K16.b);

/** The warp tile as stored: v0 .. v7 of each word in the order that one mask splits into half2 pairs. */
export const MARLIN_STORED_TILE: Layout = reorderLocals(MARLIN_WARP_TILE, WORD_75316420);

/** `B` I32 [K/16, 2N] of unsigned 4-bit codes: warp tiles along n, then along k. K % 16 == 0, N % 64 == 0. */
export function marlinWeight(n: number, k: number): PackLayout {
  const tile = storedTile(permute(MARLIN_STORED_TILE, [1, 0]), 4);
  const across = n / 64;
  return packLayout({
    bits: 4,
    ...repeatTile(tile, [across, k / 16], [tile.bits, across * tile.bits]),
    bytes: (n * k) / 2,
  });
}

/**
 * `s` F16 [G, N] from scales [N, G]: in each 64 columns, position p holds column p / 8 + 8 (p % 8), so that a lane reads
 * the eight columns of its fragments, 8 apart, in one load. Per channel (G = 1), in each 32 columns position p holds
 * column 2 (p / 8) + 8 ((p % 8) / 2) + p % 2: the column pairs of a lane's accumulators, which is where they apply.
 */
export function marlinScales(n: number, groups: number, perChannel: boolean): PackLayout {
  const rows = perChannel
    ? [
        { size: n / 32, stride: 32 * 16 },
        { size: 4, stride: 2 * 16 },
        { size: 4, stride: 8 * 16 },
        { size: 2, stride: 16 },
      ]
    : [
        { size: n / 64, stride: 64 * 16 },
        { size: 8, stride: 16 },
        { size: 8, stride: 8 * 16 },
      ];
  return packLayout({ bits: 16, rows, columns: [{ size: groups, stride: n * 16 }], bytes: n * groups * 2 });
}
