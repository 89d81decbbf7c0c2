import { allocate, fromTyped, type Tensor, typed } from '../../native/binding.js';

// A block of ggml's mxfp4: the exponent of a power of two (E8M0), then 16 bytes, byte i with element i low and i + 16 high; an element is
// E2M1.
const SIZE = 32;
const BYTES = 17;
const MAGNITUDES = [0, 0.5, 1, 1.5, 2, 3, 4, 6];

/** Codes U8 [N, K/2], the even one low, and exponents [N, K/32] of blocks; stored row r is row order[r]. */
export function mxfp4Fields(stored: Tensor, order: Int32Array, k: number): { codes: Tensor; scales: Tensor } {
  const n = order.length;
  const [codes, scales] = [allocate('u8', [n, k / 2]), allocate('u8', [n, k / SIZE])];
  const [from, to, exponents] = [stored.bytes(), codes.bytes(), scales.bytes()];
  const blocks = k / SIZE;
  for (const [stands, row] of order.entries())
    for (let block = 0; block < blocks; block++) {
      const at = (stands * blocks + block) * BYTES;
      exponents[row * blocks + block] = from[at] as number;
      for (let i = 0; i < SIZE; i += 2) {
        const nibble = (e: number): number => ((from[at + 1 + (e % 16)] as number) >> (e < 16 ? 0 : 4)) & 15;
        to[(row * k + block * SIZE + i) / 2] = nibble(i) | (nibble(i + 1) << 4);
      }
    }
  const powers = fromTyped('f8_e8m0', scales.shape, exponents);
  scales.dispose();
  return { codes, scales: powers };
}

/** What the blocks stand for, F32 [N, K]. */
export function mxfp4Values(stored: Tensor, order: Int32Array, k: number): Tensor {
  const { codes, scales } = mxfp4Fields(stored, order, k);
  const values = allocate('f32', [order.length, k]);
  const [pairs, powers, to] = [codes.bytes(), scales.bytes(), typed<Float32Array>(values)];
  for (let i = 0; i < to.length; i++) {
    const code = ((pairs[i >> 1] as number) >> (4 * (i % 2))) & 15;
    const magnitude = (MAGNITUDES[code & 7] as number) * 2 ** ((powers[Math.floor(i / SIZE)] as number) - 127);
    to[i] = code & 8 ? -magnitude : magnitude;
  }
  for (const tensor of [codes, scales]) tensor.dispose();
  return values;
}
