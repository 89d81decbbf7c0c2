import { type DecodeBlocks, halves, u16 } from './half.js';

/** Blocks of 32 to 256 with one scale, or one every 16: codes of 1 to 8 bits, values from a line or from a short table. */

/** E2M1, doubled. */
const E2M1 = Int8Array.of(0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12);
/** The levels of IQ4: denser near zero. */
export const IQ4_LEVELS = Int8Array.of(-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113);
const CENTERED_4 = Int8Array.from({ length: 16 }, (_, code) => code - 8);

/** d, 16 bytes: byte i holds elements i (low) and i + 16; value = level[code] d. */
const levels =
  (table: Int8Array): DecodeBlocks =>
  (bytes, blocks, out) => {
    const half = halves();
    for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 18, o += 32) {
      const d = half[u16(bytes, at)] as number;
      for (let i = 0; i < 16; i++) {
        const pair = bytes[at + 2 + i] as number;
        out[o + i] = d * (table[pair & 15] as number);
        out[o + 16 + i] = d * (table[pair >> 4] as number);
      }
    }
  };

export const q4_0 = levels(CENTERED_4);
export const iq4_nl = levels(IQ4_LEVELS);

/** d, m, 16 bytes: q d + m. */
export const q4_1: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 20, o += 32) {
    const d = half[u16(bytes, at)] as number;
    const m = half[u16(bytes, at + 2)] as number;
    for (let i = 0; i < 16; i++) {
      const pair = bytes[at + 4 + i] as number;
      out[o + i] = Math.fround(d * (pair & 15)) + m;
      out[o + 16 + i] = Math.fround(d * (pair >> 4)) + m;
    }
  }
};

/** d, [m,] the fifth bits of 32 elements, 16 bytes: (q - 16) d, or q d + m. */
const fiveBits =
  (minimum: boolean): DecodeBlocks =>
  (bytes, blocks, out) => {
    const half = halves();
    const head = minimum ? 4 : 2;
    for (let b = 0, at = 0, o = 0; b < blocks; b++, at += head + 20, o += 32) {
      const d = half[u16(bytes, at)] as number;
      const m = minimum ? (half[u16(bytes, at + 2)] as number) : 0;
      const high = u16(bytes, at + head) | (u16(bytes, at + head + 2) << 16);
      for (let i = 0; i < 16; i++) {
        const pair = bytes[at + head + 4 + i] as number;
        const low = (pair & 15) | (((high >>> i) & 1) << 4);
        const top = (pair >> 4) | (((high >>> (i + 16)) & 1) << 4);
        out[o + i] = minimum ? Math.fround(d * low) + m : d * (low - 16);
        out[o + 16 + i] = minimum ? Math.fround(d * top) + m : d * (top - 16);
      }
    }
  };

export const q5_0 = fiveBits(false);
export const q5_1 = fiveBits(true);

/** d, 32 signed bytes. */
export const q8_0: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 34, o += 32) {
    const d = half[u16(bytes, at)] as number;
    for (let i = 0; i < 32; i++) out[o + i] = d * (((bytes[at + 2 + i] as number) << 24) >> 24);
  }
};

/** A power of two in E8M0, halved for the doubled E2M1, 16 bytes. */
export const mxfp4: DecodeBlocks = (bytes, blocks, out) => {
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 17, o += 32) {
    const d = 2 ** ((bytes[at] as number) - 128);
    for (let i = 0; i < 16; i++) {
      const pair = bytes[at + 1 + i] as number;
      out[o + i] = d * (E2M1[pair & 15] as number);
      out[o + 16 + i] = d * (E2M1[pair >> 4] as number);
    }
  }
};

/** Four scales in E4M3 without a sign, halved; then 8 bytes each of 16 elements: byte i holds i and i + 8. */
export const nvfp4: DecodeBlocks = (bytes, blocks, out) => {
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 36, o += 64)
    for (let s = 0; s < 4; s++) {
      const d = e4m3(bytes[at + s] as number) / 2;
      for (let i = 0; i < 8; i++) {
        const pair = bytes[at + 4 + s * 8 + i] as number;
        out[o + s * 16 + i] = d * (E2M1[pair & 15] as number);
        out[o + s * 16 + 8 + i] = d * (E2M1[pair >> 4] as number);
      }
    }
};

/** 0x7f is no number, and ggml takes it for 0. */
function e4m3(bits: number): number {
  if (bits === 0x7f) return 0;
  const exponent = (bits >> 3) & 15;
  return exponent === 0 ? (bits & 7) * 2 ** -9 : (8 + (bits & 7)) * 2 ** (exponent - 10);
}

/** Five digits of base 3 in a byte, read from the top: 32 bytes, 16 bytes, then 4 bytes of four digits; d behind them. */
export const tq1_0: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 54) {
    const d = half[u16(bytes, at + 52)] as number;
    for (const [from, width, digits] of [
      [0, 32, 5],
      [32, 16, 5],
      [48, 4, 4],
    ] as const)
      for (let digit = 0, power = 1; digit < digits; digit++, power *= 3)
        for (let i = 0; i < width; i++)
          out[o++] = d * ((((((bytes[at + from + i] as number) * power) & 255) * 3) >> 8) - 1);
  }
};

/** 64 bytes of four codes, d behind them: (q - 1) d. */
export const tq2_0: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 66) {
    const d = half[u16(bytes, at + 64)] as number;
    for (let from = 0; from < 64; from += 32)
      for (let shift = 0; shift < 8; shift += 2)
        for (let i = 0; i < 32; i++) out[o++] = d * ((((bytes[at + from + i] as number) >> shift) & 3) - 1);
  }
};
