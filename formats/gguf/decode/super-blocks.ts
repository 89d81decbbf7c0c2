import { type DecodeBlocks, halves, u16 } from './half.js';
import { IQ4_LEVELS } from './nibbles.js';

/** Super-blocks of 256: scales of 4 to 8 bits for runs of 16 or 32, on a scale in f16. */

const { fround } = Math;

/** scales16 (low: of the codes, high: of the minima), qs64, d, dmin: (d sc) q - dmin m. */
export const q2_k: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 84, o += 256) {
    const d = half[u16(bytes, at + 80)] as number;
    const dmin = half[u16(bytes, at + 82)] as number;
    for (let run = 0; run < 16; run++) {
      const scale = bytes[at + run] as number;
      const step = fround(d * (scale & 15));
      const least = fround(dmin * (scale >> 4));
      const from = at + 16 + (run >> 3) * 32 + (run & 1) * 16;
      const shift = (run & 6) as number;
      for (let i = 0; i < 16; i++)
        out[o + run * 16 + i] = fround(step * (((bytes[from + i] as number) >> shift) & 3)) - least;
    }
  }
};

/** hmask32, qs64, scales12, d: (d (sc - 32)) q, where a code without its high bit is 4 less. */
export const q3_k: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 110, o += 256) {
    const d = half[u16(bytes, at + 108)] as number;
    for (let run = 0; run < 16; run++) {
      const low = ((bytes[at + 96 + (run & 7)] as number) >> (run < 8 ? 0 : 4)) & 15;
      const high = ((bytes[at + 104 + (run & 3)] as number) >> (2 * (run >> 2))) & 3;
      const step = fround(d * ((low | (high << 4)) - 32));
      const from = at + 32 + (run >> 3) * 32 + (run & 1) * 16;
      const shift = run & 6;
      for (let i = 0; i < 16; i++) {
        const mask = (bytes[at + (run & 1) * 16 + i] as number) >> (run >> 1);
        out[o + run * 16 + i] = step * ((((bytes[from + i] as number) >> shift) & 3) - (mask & 1 ? 0 : 4));
      }
    }
  }
};

/** d, dmin, scales12, [qh32,] qs128: (d sc) q - dmin m, runs of 32. */
const minima =
  (fifth: boolean): DecodeBlocks =>
  (bytes, blocks, out) => {
    const half = halves();
    const codes = fifth ? 48 : 16;
    for (let b = 0, at = 0, o = 0; b < blocks; b++, at += codes + 128, o += 256) {
      const d = half[u16(bytes, at)] as number;
      const dmin = half[u16(bytes, at + 2)] as number;
      for (let run = 0; run < 8; run++) {
        const [scale, minimum] = sixBits(bytes, at + 4, run);
        const step = fround(d * scale);
        const least = fround(dmin * minimum);
        const from = at + codes + (run >> 1) * 32;
        const shift = (run & 1) * 4;
        for (let i = 0; i < 32; i++) {
          const high = fifth ? (((bytes[at + 16 + i] as number) >> run) & 1) << 4 : 0;
          out[o + run * 32 + i] = fround(step * ((((bytes[from + i] as number) >> shift) & 15) | high)) - least;
        }
      }
    }
  };

/** Scale and minimum of a run: six bits each; the upper two of runs 4 to 7 lie above those of runs 0 to 3. */
function sixBits(bytes: Uint8Array, at: number, run: number): readonly [number, number] {
  const scale = bytes[at + (run & 3)] as number;
  const minimum = bytes[at + 4 + (run & 3)] as number;
  if (run < 4) return [scale & 63, minimum & 63];
  const both = bytes[at + 8 + (run & 3)] as number;
  return [(both & 15) | ((scale >> 2) & 48), (both >> 4) | ((minimum >> 2) & 48)];
}

export const q4_k = minima(false);
export const q5_k = minima(true);

/** ql128, qh64, signed sc16, d: (d sc) (q - 32), runs of 16. */
export const q6_k: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 210, o += 256) {
    const d = half[u16(bytes, at + 208)] as number;
    for (let run = 0; run < 16; run++) {
      const step = fround(d * (((bytes[at + 192 + run] as number) << 24) >> 24));
      const within = (run & 7) * 16;
      const low = at + (run >> 3) * 64 + (within & 63);
      const high = at + 128 + (run >> 3) * 32 + (within & 31);
      const lowShift = within < 64 ? 0 : 4;
      const highShift = 2 * (within >> 5);
      for (let i = 0; i < 16; i++) {
        const q =
          (((bytes[low + i] as number) >> lowShift) & 15) | ((((bytes[high + i] as number) >> highShift) & 3) << 4);
        out[o + run * 16 + i] = step * (q - 32);
      }
    }
  }
};

/** d, the upper two bits of eight scales, their lower four, 128 bytes: (d (sc - 32)) level[q], runs of 32. */
export const iq4_xs: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 136, o += 256) {
    const d = half[u16(bytes, at)] as number;
    const upper = u16(bytes, at + 2);
    for (let run = 0; run < 8; run++) {
      const low = ((bytes[at + 4 + (run >> 1)] as number) >> (4 * (run & 1))) & 15;
      const step = fround(d * ((low | (((upper >> (2 * run)) & 3) << 4)) - 32));
      for (let i = 0; i < 16; i++) {
        const pair = bytes[at + 8 + run * 16 + i] as number;
        out[o + run * 32 + i] = step * (IQ4_LEVELS[pair & 15] as number);
        out[o + run * 32 + 16 + i] = step * (IQ4_LEVELS[pair >> 4] as number);
      }
    }
  }
};
