import { hardwareAwareTile, loadedTile, TENSOR_CORES } from '../../layout/hardware-aware.js';
import type { Layout } from '../../layout/layout.js';
import { type PackLayout, packLayout, repeatTile } from '../../layout/memory.js';

/**
 * The ways TurboMind stores a weight (TurboMind, section 4: extend to 16 bits, load fragments as the GEMM would, compress,
 * store). b: as operand B of mma.m16n8k16, two 16x16 fragments a store (u4, u8); a: as operand A, one a store (fp4, fp8);
 * sm70: as operand B of mma.m8n8k4, eight k of a column in a word.
 */
export type TurboMindForm = 'b' | 'a' | 'sm70';

/** What is loaded for each: the operand, and how many fragments go into a store. */
const LOADS = {
  b: [TENSOR_CORES[80], 'b', 2],
  a: [TENSOR_CORES[80], 'a', 1],
  sm70: [TENSOR_CORES[70], 'b', 1],
} as const;

/** Two 16x16 tiles side by side along n, operand B; [n, k] = [32, 16]. */
export const TURBOMIND_B: Layout = loadedTile(...LOADS.b);

/**
 * The codes of a module, I32 [N * K * bits / 32] in all. Tiles follow one another along n and then along k ('k-major'), or
 * along k first for the experts of a mixture in form b and sm70 ('n-major'). N and K are multiples of the tile's.
 */
export function turbomindWeight(
  n: number,
  k: number,
  bits: 4 | 8,
  form: TurboMindForm,
  order: 'k-major' | 'n-major' = 'k-major',
): PackLayout {
  const [core, operand, fragments] = LOADS[form];
  const [rows, columns] = loadedTile(core, operand, fragments).shape as [number, number];
  const stored = hardwareAwareTile(core, operand, fragments, bits);
  const [down, across] = [n / rows, k / columns];
  // sm70 counts k inside n always.
  const inner = order === 'n-major' || form === 'sm70';
  return packLayout({
    bits,
    ...repeatTile(
      stored,
      [down, across],
      inner ? [across * stored.bits, stored.bits] : [stored.bits, down * stored.bits],
    ),
    bytes: (n * k * bits) / 8,
  });
}

/**
 * Elements of 8, 16 or 32 bits, one for a column and group, from a matrix [N, G]. sm75 and later: per 16 columns the pair
 * n, n + 8 that a lane needs is one load; sm70: [G, N].
 */
export function turbomindScales(n: number, groups: number, bits: 8 | 16 | 32, sm70: boolean): PackLayout {
  const rows = sm70
    ? [{ size: n, stride: bits }]
    : [
        { size: n / 16, stride: 16 * bits },
        { size: 2, stride: bits },
        { size: 8, stride: 2 * bits },
      ];
  return packLayout({ bits, rows, columns: [{ size: groups, stride: n * bits }], bytes: (n * groups * bits) / 8 });
}
