import { reinterpretedTile } from '../../layout/fragment.js';
import type { Layout } from '../../layout/layout.js';
import { columnSpatial, local } from '../../layout/make.js';
import { type PackLayout, packLayout, repeatTile } from '../../layout/memory.js';
import { permute, product } from '../../layout/product.js';

/** Columns (n) and rows (k) of a block, and how many k a chunk of 32 codes a lane spans. */
export const TILUS_N = 32;
export const TILUS_K = 128;

/**
 * Who holds what of a block, [k, n] = [128, 32]: fragments of operand B of mma.m16n8k16 (operand A of its transpose), a
 * lane's 128 codes in the order k / 8, n / 8, k % 2. Its MMA atom is column_spatial(4, 8).local(2, 1).
 */
export const TILUS_TILE: Layout = product(local(16, 1), local(1, 4), columnSpatial(4, 8), local(2, 1));

/**
 * The codes of a weight, U8 [N/32, K/128, 512 * bits], any width from 1 to 8 bits: each lane's codes as a stream of bytes
 * that loads of 16 cut, local(bits).spatial(32).local(16) (Tilus, section 7.2), with the word order of `pairWords`.
 * N % 32 == 0, K % 128 == 0.
 */
export function tilusWeight(n: number, k: number, bits: number): PackLayout {
  const tile = reinterpretedTile(permute(TILUS_TILE, [1, 0]), bits);
  const along = k / TILUS_K;
  return packLayout({
    bits,
    ...repeatTile(tile, [n / TILUS_N, along], [along * tile.bits, tile.bits]),
    unit: tile.unit!,
    wordOrder: pairWords(bits),
    bytes: (n * k * bits) / 8,
  });
}

/**
 * The word order of a chunk: 32 codes, which are 16 pairs k, k + 1, in `bits` words. Both codes of a pair lie at the same
 * place of a word's two halves, so that whatever cuts one out cuts out the other, as f16x2 instructions want it. A half
 * holds 16 div bits whole fields; the pairs that are left over are spread over the bits above them, in runs as long as
 * these are.
 */
export function pairWords(bits: number): number[] {
  const order: number[] = [];
  const fields = Math.floor(16 / bits);
  const whole = Math.min(16, fields * bits);
  for (let pair = 0; pair < 16; pair++)
    for (let half = 0; half < 2; half++)
      for (let bit = 0; bit < bits; bit++) {
        const [word, at] =
          pair < whole
            ? [Math.floor(pair / fields), (pair % fields) * bits + bit]
            : spare(bits, pair - whole, bit, 16 - fields * bits);
        order.push(32 * word + 16 * half + at);
      }
  return order;
}

/**
 * Word and bit of a half for bit `bit` of the `index`-th pair that is left over. Halves have `room` bits for them, and
 * there are as many such pairs.
 */
function spare(bits: number, index: number, bit: number, room: number): [word: number, bit: number] {
  // Each pair fills its own words as far as whole runs of `room` bits go; what is left of all of them shares the last words.
  const runs = Math.floor(bits / room);
  const rest = bits - runs * room;
  if (bit < runs * room) return [index * runs + Math.floor(bit / room), 16 - room + (bit % room)];
  const at = index * rest + (bit - runs * room);
  return [room * runs + Math.floor(at / room), 16 - room + (at % room)];
}

/** Scales or zero points of 8 or 16 bits, [N/32, G, 32] from a matrix [N, G]: a lane's four columns n % 8 are neighbours. */
export function tilusScales(n: number, groups: number, bits: 8 | 16): PackLayout {
  return packLayout({
    bits,
    rows: [
      { size: n / TILUS_N, stride: groups * TILUS_N * bits },
      { size: 4, stride: bits },
      { size: 8, stride: 4 * bits },
    ],
    columns: [{ size: groups, stride: TILUS_N * bits }],
    bytes: (n * groups * bits) / 8,
  });
}
