import { words, type ZeroConvention } from '../../../formats/gptq/layout.js';
import { LpqError } from '../../../src/core/error.js';

/** The tensors of a GPTQ linear as they lie in the file, row-major; scales stay f16 bit patterns. */
export interface GptqTensors {
  /** [ceil(K*bits/32), N] */
  readonly qweight: Int32Array;
  /** [G, ceil(N*bits/32)] */
  readonly qzeros: Int32Array;
  /** [G, N] */
  readonly scales: Uint16Array;
  /** [K] */
  readonly gIdx: Int32Array;
}

/** The same in canonical orientation: W[n][k] = (codes[n][k] - zeros[n][g]) * scales[n][g], g = gIdx[k]. */
export interface GptqDecoded {
  /** [N, K], unsigned codes. */
  readonly codes: Uint8Array;
  /** [N, G], true zero points. */
  readonly zeros: Uint8Array;
  /** [N, G], f16 bit patterns. */
  readonly scales: Uint16Array;
  readonly gIdx: Int32Array;
}

/**
 * Decodes 2-, 3-, 4- and 8-bit GPTQ. A v1 zero is (stored + 1) mod 2^bits, so a stored -1 reads as 0. Independent of
 * every packer: fields are cut out of the words one by one. Throws LPQ_PACK when a length does not match or g_idx
 * names no group.
 */
export function decodeGptq(
  { qweight, qzeros, scales, gIdx }: GptqTensors,
  p: { bits: number; n: number; k: number; groups: number; convention: ZeroConvention },
): GptqDecoded {
  const { bits, n, k, groups } = p;
  const zeroWords = words(n, bits);
  expectLength('qweight', qweight.length, words(k, bits) * n);
  expectLength('qzeros', qzeros.length, groups * zeroWords);
  expectLength('scales', scales.length, groups * n);
  expectLength('g_idx', gIdx.length, k);
  const stray = gIdx.findIndex((group) => group < 0 || group >= groups);
  if (stray >= 0)
    throw new LpqError('LPQ_PACK', 'g_idx names a group that does not exist', { got: `${gIdx[stray]} at [${stray}]` });
  const mask = 2 ** bits - 1;
  const codes = new Uint8Array(n * k);
  // Sixteen columns at a time: they share the cache lines of qweight, which is a transpose of the codes.
  for (let first = 0; first < n; first += 16)
    for (let i = 0; i < k; i++)
      for (let column = first; column < Math.min(first + 16, n); column++)
        codes[column * k + i] = field(qweight, column, n, i, bits);
  const zeros = new Uint8Array(n * groups);
  const outScales = new Uint16Array(n * groups);
  for (let g = 0; g < groups; g++)
    for (let column = 0; column < n; column++) {
      const stored = field(qzeros, g * zeroWords, 1, column, bits);
      zeros[column * groups + g] = p.convention === 'v1' ? (stored + 1) & mask : stored;
      outScales[column * groups + g] = scales[g * n + column] as number;
    }
  return { codes, zeros, scales: outScales, gIdx };
}

/** Field i of the little-endian bitstream whose word w is data[base + w * stride]. */
function field(data: Int32Array, base: number, stride: number, i: number, bits: number): number {
  const bit = i * bits;
  const word = Math.floor(bit / 32);
  const shift = bit % 32;
  let value = (data[base + word * stride] as number) >>> shift;
  if (shift + bits > 32) value |= (data[base + (word + 1) * stride] as number) << (32 - shift);
  return value & (2 ** bits - 1);
}

function expectLength(name: string, got: number, expected: number): void {
  if (got !== expected)
    throw new LpqError('LPQ_PACK', `${name} has the wrong size for its module`, {
      got: `${got} elements`,
      expected: `${expected}`,
    });
}
