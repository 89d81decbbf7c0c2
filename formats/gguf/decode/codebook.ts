import { IQ1, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS } from './codebooks.js';
import { type DecodeBlocks, halves, u16 } from './half.js';

/** Super-blocks of 256 whose codes name rows of a codebook: 4 or 8 magnitudes at once, signs beside them. */

const { fround } = Math;

/** Eight signs of which seven are stored: the number of minus signs is even. */
const EVEN_SIGNS = Uint8Array.from({ length: 128 }, (_, seven) => {
  let ones = 0;
  for (let bit = 0; bit < 7; bit++) ones += (seven >> bit) & 1;
  return seven | ((ones & 1) << 7);
});

/** `width` magnitudes of row `row` of a codebook times `step`; bit i of `signs` is element i's minus. */
function row(out: Float32Array, o: number, book: Int8Array, index: number, width: 4 | 8, step: number, signs: number) {
  for (let i = 0; i < width; i++) {
    const value = step * (book[index * width + i] as number);
    out[o + i] = (signs >> i) & 1 ? -value : value;
  }
}

/** d; of each 32: four rows, then seven signs each and a scale of four bits: d (sc + 1/2) / 4. */
export const iq2_xxs: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  const book = IQ2_XXS();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 66, o += 256) {
    const d = half[u16(bytes, at)] as number;
    for (let run = 0; run < 8; run++) {
      const from = at + 2 + run * 8;
      const tail = (u16(bytes, from + 4) | (u16(bytes, from + 6) << 16)) >>> 0;
      const step = fround(fround(d * ((tail >>> 28) + 0.5)) * 0.25);
      for (let i = 0; i < 4; i++)
        row(out, o + run * 32 + i * 8, book, bytes[from + i] as number, 8, step, signsOf(tail, i));
    }
  }
};

const signsOf = (tail: number, i: number): number => EVEN_SIGNS[(tail >>> (7 * i)) & 127] as number;

/** d, 32 words of a row (9 bits) and seven signs, 16 scales: d (sc + 1/2) / 4 for each 16. */
export const iq2_xs: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  const book = IQ2_XS();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 74, o += 256) {
    const d = half[u16(bytes, at)] as number;
    for (let i = 0; i < 32; i++) {
      const word = u16(bytes, at + 2 + 2 * i);
      const step = quarter(d, bytes[at + 66 + (i >> 2)] as number, i >> 1);
      row(out, o + i * 8, book, word & 511, 8, step, EVEN_SIGNS[word >> 9] as number);
    }
  }
};

const nibble = (byte: number, index: number): number => (byte >> (4 * (index & 1))) & 15;
const quarter = (d: number, byte: number, index: number): number =>
  fround(fround(d * (nibble(byte, index) + 0.5)) * 0.25);

/** d, 32 rows, 32 bytes of signs, two more bits of each row, 16 scales. */
export const iq2_s: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  const book = IQ2_S();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 82, o += 256) {
    const d = half[u16(bytes, at)] as number;
    for (let i = 0; i < 32; i++) {
      const upper = ((bytes[at + 66 + (i >> 2)] as number) >> (2 * (i & 3))) & 3;
      const step = quarter(d, bytes[at + 74 + (i >> 2)] as number, i >> 1);
      row(out, o + i * 8, book, (bytes[at + 2 + i] as number) | (upper << 8), 8, step, bytes[at + 34 + i] as number);
    }
  }
};

/** d, 64 rows of four, then of each 32 seven signs for each eight and a scale: d (sc + 1/2) / 2. */
export const iq3_xxs: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  const book = IQ3_XXS();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 98, o += 256) {
    const d = half[u16(bytes, at)] as number;
    for (let run = 0; run < 8; run++) {
      const tail = (u16(bytes, at + 66 + run * 4) | (u16(bytes, at + 68 + run * 4) << 16)) >>> 0;
      const step = fround(fround(d * ((tail >>> 28) + 0.5)) * 0.5);
      for (let i = 0; i < 8; i++) {
        const signs = signsOf(tail, i >> 1) >> (4 * (i & 1));
        row(out, o + run * 32 + i * 4, book, bytes[at + 2 + run * 8 + i] as number, 4, step, signs);
      }
    }
  }
};

/** d, 64 rows of four, a ninth bit of each, 32 bytes of signs, eight scales: d (2 sc + 1). */
export const iq3_s: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  const book = IQ3_S();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 110, o += 256) {
    const d = half[u16(bytes, at)] as number;
    for (let i = 0; i < 64; i++) {
      const ninth = ((bytes[at + 66 + (i >> 3)] as number) >> (i & 7)) & 1;
      const step = fround(d * (2 * nibble(bytes[at + 106 + (i >> 4)] as number, i >> 3) + 1));
      const signs = (bytes[at + 74 + (i >> 1)] as number) >> (4 * (i & 1));
      row(out, o + i * 4, book, (bytes[at + 2 + i] as number) | (ninth << 8), 4, step, signs);
    }
  }
};

/** Eight of -1, 0 and 1, moved by an eighth up or down. */
function ternary(out: Float32Array, o: number, book: Int8Array, index: number, step: number, shift: number) {
  for (let i = 0; i < 8; i++) out[o + i] = step * ((book[index * 8 + i] as number) + shift);
}

/** d, 32 rows; of each 32 a word: three more bits of each row, a scale d (2 sc + 1), the direction of the shift. */
export const iq1_s: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  const book = IQ1();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 50, o += 256) {
    const d = half[u16(bytes, at)] as number;
    for (let i = 0; i < 32; i++) {
      const word = u16(bytes, at + 34 + 2 * (i >> 2));
      const index = (bytes[at + 2 + i] as number) | (((word >> (3 * (i & 3))) & 7) << 8);
      const step = fround(d * (2 * ((word >> 12) & 7) + 1));
      ternary(out, o + i * 8, book, index, step, word & 0x8000 ? -0.125 : 0.125);
    }
  }
};

/** 32 rows, a nibble of each (three more bits, the direction), four words: 16 scales of three bits and a quarter of d each. */
export const iq1_m: DecodeBlocks = (bytes, blocks, out) => {
  const half = halves();
  const book = IQ1();
  for (let b = 0, at = 0, o = 0; b < blocks; b++, at += 56, o += 256) {
    let bits = 0;
    for (let word = 0; word < 4; word++) bits |= (u16(bytes, at + 48 + 2 * word) >> 12) << (4 * word);
    const d = half[bits] as number;
    for (let i = 0; i < 32; i++) {
      const upper = nibble(bytes[at + 32 + (i >> 1)] as number, i);
      const scale = (u16(bytes, at + 48 + 2 * (i >> 3)) >> (3 * ((i >> 1) & 3))) & 7;
      const index = (bytes[at + i] as number) | ((upper & 7) << 8);
      ternary(out, o + i * 8, book, index, fround(d * (2 * scale + 1)), upper & 8 ? -0.125 : 0.125);
    }
  }
};
