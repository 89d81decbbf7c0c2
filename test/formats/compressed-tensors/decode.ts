import { packedWords, packingsOf, type WordPacking } from '../../../formats/compressed-tensors/layout.js';
import { LpqError } from '../../../src/core/error.js';

/** The packed tensors of a linear as they lie in the file, row-major. */
export interface PackQuantizedTensors {
  /** [N, words] */
  readonly weightPacked: Int32Array;
  /** [words, G]; absent when symmetric. */
  readonly weightZeroPoint?: Int32Array;
}

/**
 * Offset codes and zeros: W[n][k] = (codes[n][k] - zeros[n][g]) * scale[n][g]. The signed values of the format are
 * codes - 2^(bits-1).
 */
export interface PackQuantizedDecoded {
  /** [N, K] */
  readonly codes: Uint8Array;
  /** [N, G]; 2^(bits-1) everywhere when symmetric. */
  readonly zeros: Uint8Array;
  readonly packing: WordPacking;
}

/**
 * Decodes pack-quantized codes of 1 to 8 bits in either packing, told apart by the number of words. Independent of every
 * packer. Throws LPQ_PACK when the sizes fit neither.
 */
export function decodePackQuantized(
  { weightPacked, weightZeroPoint }: PackQuantizedTensors,
  p: { bits: number; n: number; k: number; groups: number },
): PackQuantizedDecoded {
  const { bits, n, k, groups } = p;
  const rowWords = weightPacked.length / n;
  const packing =
    packingsOf(k, bits, rowWords)[0] ?? wrongSize('weight_packed', weightPacked.length, `${n} rows of ${k} codes`);
  const codes = new Uint8Array(n * k);
  for (let row = 0; row < n; row++)
    for (let i = 0; i < k; i++) codes[row * k + i] = cut(weightPacked, row * rowWords, 1, i, bits, packing);
  const zeros = new Uint8Array(n * groups).fill(2 ** (bits - 1));
  if (weightZeroPoint) {
    const zeroWords = weightZeroPoint.length / groups;
    // Few codes fill the same words in either packing; then the weights' packing decides.
    const other = packing === 'dense' ? 'whole' : 'dense';
    const zeroPacking = ([packing, other] as const).find((kind) => packedWords(n, bits, kind) === zeroWords);
    if (!zeroPacking) return wrongSize('weight_zero_point', weightZeroPoint.length, `${groups} columns of ${n} codes`);
    for (let g = 0; g < groups; g++)
      for (let row = 0; row < n; row++)
        zeros[row * groups + g] = cut(weightZeroPoint, g, groups, row, bits, zeroPacking);
  }
  return { codes, zeros, packing };
}

/** Code i of a run whose word w is data[base + w * stride]. */
function cut(data: Int32Array, base: number, stride: number, i: number, bits: number, packing: WordPacking): number {
  const perWord = Math.floor(32 / bits);
  const bit = packing === 'dense' ? i * bits : Math.floor(i / perWord) * 32 + (i % perWord) * bits;
  let value = 0;
  // Bit by bit: slow and hard to get wrong, as an oracle should be.
  for (let b = 0; b < bits; b++) {
    const word = data[base + Math.floor((bit + b) / 32) * stride] as number;
    value |= ((word >>> ((bit + b) % 32)) & 1) << b;
  }
  return value;
}

function wrongSize(name: string, got: number, expected: string): never {
  throw new LpqError('LPQ_PACK', `${name} has the wrong size for its module`, { got: `${got} words`, expected });
}
