import { MMA_M16N8K32, reinterpretedTile, reorderLocals } from '../../layout/fragment.js';
import { type Layout, layout } from '../../layout/layout.js';
import { local } from '../../layout/make.js';
import { type PackLayout, packLayout, repeatTile } from '../../layout/memory.js';
import { permute, product } from '../../layout/product.js';

/** Output features (n) and input features (k) of a block. */
export const COMET_N = 16;
export const COMET_K = 128;

/**
 * Who holds what of a block, [k, n] = [128, 16]: fragments of operand B of mma.m16n8k32 (the registers of operand A of wgmma
 * m64nNk32 are the same), four along k and two along n. Registers b0 and b1 hold k % 16 / 4 = lane % 4 of a chunk's first and last 16 k:
 * the "0-3 and 8-11" of COMET's weight interleave (section 4.3), here 0-3 and 16-19. The two are nibbles of one byte, which is its
 * location switch: `w << 4` and `w`, masked with 0xf0, are the two registers, each code times 16.
 */
export const COMET_TILE: Layout = reorderLocals(
  product(local(4, 1), local(1, 2), MMA_M16N8K32.b),
  layout([8], [2, 4], [], [1, 0]),
);

/**
 * The 4-bit codes of a weight, U8 [N/16, K/128, 1024]: lane by lane, a lane's 64 codes in two loads of 16 bytes, of which each
 * holds two chunks of 32 k. N % 16 == 0, K % 128 == 0.
 *   (lane, chunk, eight, i) -> n = 8 eight + lane / 4, k = 32 chunk + 4 (lane % 4) + i (low nibble), that + 16 (high nibble)
 */
export function cometWeight(n: number, k: number): PackLayout {
  const tile = reinterpretedTile(permute(COMET_TILE, [1, 0]), 4);
  const along = k / COMET_K;
  return packLayout({
    bits: 4,
    ...repeatTile(tile, [n / COMET_N, along], [along * tile.bits, tile.bits]),
    unit: tile.unit!,
    bytes: (n * k) / 2,
  });
}

/** Scales F32 [K/128, N] from a matrix [N, K/128]. */
export function cometScales(n: number, groups: number): PackLayout {
  const rows = [{ size: n, stride: 32 }];
  return packLayout({ bits: 32, rows, columns: [{ size: groups, stride: n * 32 }], bytes: n * groups * 4 });
}
