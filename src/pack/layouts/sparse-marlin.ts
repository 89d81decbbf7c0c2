import { type PackLayout, packLayout } from '../../layout/memory.js';

/**
 * The layouts of Sparse-MARLIN as strides in bits. The weight is operand A of mma.sp.m16n8k32, 16 output features by 32
 * input features of which 16 are stored; a warp holds 64 output features as four such products, feature 8c + 4b + j of them
 * being row c + 8b of product j.
 */

/**
 * `B` I32 [K/32, N * bits / 2] of unsigned codes, from the kept codes [N, K/2]. Compressed column 16t + r and feature
 * 64s + 8c + 4b + j (b of 2, j of 4) lie in strip s of step t, with lane 4c + (r % 8) / 2; of 4 bits in word j of the lane at
 * nibble 4 (r % 2) + 2b + r / 8, of 8 bits in word 2j + b at byte 2 (r % 2) + r / 8. K % 32 == 0, N % 64 == 0.
 */
export function sparseMarlinWeight(n: number, k: number, bits: 4 | 8 = 4): PackLayout {
  const lane = bits * 32;
  const [below, product, later, right] = bits === 4 ? [8, 32, 4, 16] : [32, 64, 8, 16];
  return packLayout({
    bits,
    rows: [
      { size: n / 64, stride: 32 * lane },
      { size: 8, stride: 4 * lane },
      { size: 2, stride: below },
      { size: 4, stride: product },
    ],
    columns: [
      { size: k / 32, stride: (n / 2) * lane },
      { size: 2, stride: later },
      { size: 4, stride: lane },
      { size: 2, stride: right },
    ],
    bytes: (n * k * bits) / 16,
  });
}

/**
 * `meta` I16 [K/32, 2N] from words [N, K/16], each of 16 input features. A thread's register of mma.sp holds row c in its low
 * half and row c + 8 in its high one; threads 4c + 2s + h give the first (h = 0) and last 16 features of rows c and c + 8 to
 * the product whose sparsity selector is s. Products 0 and 1 read one register with the selectors 0 and 1, and 2 and 3 another.
 */
export function sparseMarlinMetadata(n: number, k: number): PackLayout {
  const half = 16;
  return packLayout({
    bits: half,
    rows: [
      { size: n / 64, stride: 128 * half },
      { size: 8, stride: 8 * half },
      { size: 2, stride: half },
      { size: 2, stride: 64 * half },
      { size: 2, stride: 4 * half },
    ],
    columns: [
      { size: k / 32, stride: 2 * n * half },
      { size: 2, stride: 2 * half },
    ],
    bytes: (n * k) / 8,
  });
}

/**
 * `s` F16 [G, N] from scales [N, G]: of each eight features position p holds p / 2 + 4 (p % 2), rows c and c + 8 of a product
 * beside each other. Per channel (G = 1) in place: they meet the accumulators.
 */
export function sparseMarlinScales(n: number, groups: number): PackLayout {
  const rows =
    groups === 1
      ? [{ size: n, stride: 16 }]
      : [
          { size: n / 8, stride: 8 * 16 },
          { size: 2, stride: 16 },
          { size: 4, stride: 2 * 16 },
        ];
  return packLayout({ bits: 16, rows, columns: [{ size: groups, stride: n * 16 }], bytes: n * groups * 2 });
}
