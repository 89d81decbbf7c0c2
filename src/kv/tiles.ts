import { LpqError } from '../core/error.js';
import { MMA_M16N8K16 } from '../layout/fragment.js';
import type { Layout } from '../layout/layout.js';
import { local, spatial } from '../layout/make.js';
import { permute, product } from '../layout/product.js';

/** Bits of the words that codes are packed into (BitDecoding, section IV-A: INT16). */
export const WORD_BITS = 16;

/** Warps that share the tokens of a tile (W_n of BitDecoding, section IV-B). */
const WARPS = 4;

/** Dims of a head whose values are packed together, at most. */
const CHUNK = 128;

/**
 * Keys as a block of warps holds them for S = Q Kᵀ, [tokens, channels]: K is operand B of mma.m16n8k16, warps stand side by
 * side, and each thread repeats that for as many tokens as a word has codes, the outermost step of its registers: so the
 * codes that a thread packs into one word are those it multiplies.
 */
export function keyTile(bits: number): Layout {
  return product(local(WORD_BITS / bits, 1), spatial(WARPS, 1), permute(MMA_M16N8K16.b, [1, 0]));
}

/** N_r = P_n W_n R (BitDecoding, formula 1): the tokens of a tile of keys. */
export function residualBlock(bits: number): number {
  return keyTile(bits).shape[0] as number;
}

/**
 * Values as a warp holds them for P V, [tokens, dims]: operand B again, repeated along the dims first inside a word's stride and
 * then, outermost, for the codes of a word. Throws LPQ_LAYOUT for head dims that do not split so.
 */
export function valueTile(bits: number, headDim: number): Layout {
  const chunk = Math.min(headDim, CHUNK);
  const codes = WORD_BITS / bits;
  const [, fragment] = MMA_M16N8K16.b.shape as readonly [number, number];
  if (headDim % chunk !== 0 || chunk % (codes * fragment) !== 0)
    throw new LpqError('LPQ_LAYOUT', `values of heads of ${headDim} dims cannot be packed in ${bits} bits`, {
      got: headDim,
      expected: `a multiple of ${codes * fragment} up to ${CHUNK}, or of ${CHUNK}`,
      hint: 'Use more bits: --kv 4 or --kv 8.',
    });
  return product(local(1, codes), local(1, chunk / codes / fragment), MMA_M16N8K16.b);
}
