import { MMA_M16N8K16, reorderLocals, storedTile, WORD_3120, WORD_75316420 } from '../../layout/fragment.js';
import type { Layout } from '../../layout/layout.js';
import { local, spatial } from '../../layout/make.js';
import { type PackLayout, packLayout, repeatTile } from '../../layout/memory.js';
import { permute, product } from '../../layout/product.js';

/**
 * The ways TurboMind stores a weight (TurboMind, section 4: extend to 16 bits, load fragments as the GEMM would, compress,
 * store). b: as operand B of mma.m16n8k16, two 16x16 fragments a store (u4, u8); a: as operand A, one a store (fp4, fp8);
 * sm70: as operand B of mma.m8n8k4, eight k of a column in a word.
 */
export type TurboMindForm = 'b' | 'a' | 'sm70';

/** Two 16x16 tiles side by side along n, operand B; [n, k] = [32, 16]. */
export const TURBOMIND_B: Layout = permute(product(local(1, 2), local(1, 2), MMA_M16N8K16.b), [1, 0]);

/** Operand A with n in the place of m; [n, k] = [16, 16]. */
export const TURBOMIND_A: Layout = MMA_M16N8K16.a;

/** A lane for each of 32 columns, eight k; [n, k] = [32, 8]. */
export const TURBOMIND_SM70: Layout = product(spatial(32, 1), local(1, 8));

const TILES = { b: TURBOMIND_B, a: TURBOMIND_A, sm70: TURBOMIND_SM70 } as const;

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
  const tile = TILES[form];
  const stored = storedTile(reorderLocals(tile, bits === 4 ? WORD_75316420 : WORD_3120), bits);
  const [down, across] = [n / tile.shape[0]!, k / tile.shape[1]!];
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
