import { MMA_M16N8K16, reorderLocals, storedTile, WORD_3120, WORD_75316420 } from '../../layout/fragment.js';
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

/** The same for 8-bit codes: the four of a word are one B fragment's, v0 v2 v1 v3 from the lowest byte. */
export const MARLIN_STORED_TILE_8: Layout = reorderLocals(MARLIN_WARP_TILE, WORD_3120);

/** `B` I32 [K/16, N * bits / 2] of unsigned codes: warp tiles along n, then along k. K % 16 == 0, N % 64 == 0. */
export function marlinWeight(n: number, k: number, bits: 4 | 8 = 4): PackLayout {
  const tile = storedTile(permute(bits === 4 ? MARLIN_STORED_TILE : MARLIN_STORED_TILE_8, [1, 0]), bits);
  const across = n / 64;
  return packLayout({
    bits,
    ...repeatTile(tile, [across, k / 16], [tile.bits, across * tile.bits]),
    bytes: (n * k * bits) / 8,
  });
}

/**
 * Zero points I32 [G, N * bits / 32] of unsigned codes, from zeros [N, G]: in each 64 columns the order of grouped scales,
 * and the codes of a word in the order of the weights (0 2 4 6 1 3 5 7; 0 2 1 3 for 8 bits). So column n of 64 is in
 * nibble [0 4 1 5 2 6 3 7][n / 8] of word n % 8.
 */
export function marlinZeros(n: number, groups: number, bits: 4 | 8): PackLayout {
  const inWord =
    bits === 4
      ? [
          { size: 4, stride: 4 },
          { size: 2, stride: 16 },
        ]
      : [
          { size: 2, stride: 32 },
          { size: 2, stride: 8 },
          { size: 2, stride: 16 },
        ];
  return packLayout({
    bits,
    rows: [{ size: n / 64, stride: 64 * bits }, ...inWord, { size: 8, stride: 8 * bits }],
    columns: [{ size: groups, stride: n * bits }],
    bytes: (n * groups * bits) / 8,
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
