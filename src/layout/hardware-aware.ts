import { LpqError } from '../core/error.js';
import { LDMATRIX, reorderLocals, type StoredTile, storedTile } from './fragment.js';
import { type Layout, layout } from './layout.js';
import { local, spatial } from './make.js';
import { permute, product } from './product.js';

/**
 * TurboMind's weight layouts as it derives them (TurboMind, section 4.1): codes are extended to 16 bits, loaded into registers as the
 * GEMM would load a 16-bit operand, compressed there, and stored as they lie. So a lane later finds its registers' codes with
 * one plain load, on each architecture for its own instructions. Every step is a function of layouts here; no table says where a code goes.
 */

/** Of a tensor core: which instruction multiplies 16-bit operands, and which one loads them from shared memory. */
export interface TensorCore {
  readonly mma: 'm16n8k16' | 'm16n8k8' | 'm8n8k4';
  readonly load: 'ldmatrix' | 'lds.128';
}
export const TENSOR_CORES: Readonly<Record<70 | 75 | 80 | 86 | 89 | 90, TensorCore>> = {
  70: { mma: 'm8n8k4', load: 'lds.128' },
  75: { mma: 'm16n8k8', load: 'ldmatrix' },
  80: { mma: 'm16n8k16', load: 'ldmatrix' },
  86: { mma: 'm16n8k16', load: 'ldmatrix' },
  89: { mma: 'm16n8k16', load: 'ldmatrix' },
  90: { mma: 'm16n8k16', load: 'ldmatrix' },
};

/**
 * What a lane's registers hold of one operand, [k, n] for B and [m, k] for A, 16-bit elements, two a register.
 *
 * ldmatrix.x4 fills four registers with four 8x8 matrices, whose rows of 16 bytes are where the addresses of eight lanes each say; so the
 * GEMM chooses which 8x8 block is which register by what its instruction wants: of A those 8 rows below come second and those 8 k
 * further third, of B (from memory with n contiguous, hence .trans) those 8 k further second. The third and fourth of B belong to the
 * next eight columns: one instruction's load serves two products. m16n8k8 takes the same registers in two instructions.
 * m8n8k4 has no ldmatrix: a lane reads the eight k of its column with one 16-byte load.
 */
export function loadedFragment(core: TensorCore, operand: 'a' | 'b'): Layout {
  if (core.load === 'lds.128') {
    if (operand === 'a') throw new LpqError('LPQ_LAYOUT', 'weights of m8n8k4 are operand B', { got: operand });
    return product(local(1, 1), permute(product(spatial(32, 1), local(1, 8)), [1, 0]));
  }
  // Registers count the blocks from the right of the product: the last one changes fastest.
  return operand === 'a'
    ? product(local(1, 2), local(2, 1), LDMATRIX.plain)
    : product(local(1, 2), local(2, 1), LDMATRIX.trans);
}

/**
 * The order of codes in a 32-bit word of `bits`-bit codes: half e of register r goes to bit 16 e + bits r, so that shifting by
 * bits r and masking both halves at once gives register r. Of 4 bits that is 75316420 from the top, of 8 bits 3120.
 */
export function compressedWord(bits: 4 | 8): Layout {
  const registers = 16 / bits;
  return layout([2 * registers], [registers, 2], [], [1, 0]);
}

/** The tile that one store of a warp writes: `fragments` loaded side by side along n, compressed; rows are n, columns k. */
export function hardwareAwareTile(core: TensorCore, operand: 'a' | 'b', fragments: 1 | 2, bits: 4 | 8): StoredTile {
  return storedTile(reorderLocals(loadedTile(core, operand, fragments), compressedWord(bits)), bits);
}

/** The same before it is compressed: [n, k]. */
export function loadedTile(core: TensorCore, operand: 'a' | 'b', fragments: 1 | 2): Layout {
  // The weight is W [n, k]: operand A as it is, with n in the place of m; operand B transposed.
  const one = loadedFragment(core, operand);
  const fragment = operand === 'a' ? one : permute(one, [1, 0]);
  return fragments === 1 ? fragment : product(local(fragments, 1), fragment);
}
