/** Magnitudes of E2M1 by the low three bits of a code. */
const E2M1: readonly number[] = [0, 0.5, 1, 1.5, 2, 3, 4, 6];

/**
 * One expert as the architecture stores it in floats: BF16 [K, N], transposed, value = code * 2^(scale - 127). Exact: two
 * significant bits, the least 2^-128, which BF16 holds as a subnormal; from 2^128 on (scales of 253 and 254) infinity, and
 * 255 is NaN. blocks U8 [N, K/2], even codes low; scales U8 [N, K/32].
 */
export function mxfp4ToBf16(blocks: Uint8Array, scales: Uint8Array, n: number, k: number, out: Uint16Array): void {
  const table = bf16Table();
  const rowBytes = k / 2;
  const rowScales = k / 32;
  const TILE = 32;
  // A tile of 32 x 32 goes through a buffer: its columns lie a power of two apart, which one set of a cache does not hold.
  const tile = new Uint16Array(TILE * TILE);
  for (let n0 = 0; n0 < n; n0 += TILE) {
    const width = Math.min(TILE, n - n0);
    for (let block = 0; block < rowScales; block++) {
      for (let row = 0; row < width; row++) {
        const first = (scales[(n0 + row) * rowScales + block] as number) * 16;
        const from = (n0 + row) * rowBytes + block * 16;
        for (let byte = 0; byte < 16; byte++) {
          const two = blocks[from + byte] as number;
          tile[2 * byte * TILE + row] = table[first + (two & 15)] as number;
          tile[(2 * byte + 1) * TILE + row] = table[first + (two >> 4)] as number;
        }
      }
      for (let i = 0; i < TILE; i++) {
        const to = (block * TILE + i) * n + n0;
        for (let row = 0; row < width; row++) out[to + row] = tile[i * TILE + row] as number;
      }
    }
  }
}

let made: Uint16Array | undefined;

/** BF16 patterns of all 16 codes under all 256 scales. */
function bf16Table(): Uint16Array {
  if (made) return made;
  made = new Uint16Array(256 * 16);
  const float = new Float32Array(1);
  const bits = new Uint32Array(float.buffer);
  for (let scale = 0; scale < 256; scale++)
    for (let code = 0; code < 16; code++) {
      const magnitude = scale === 255 ? Number.NaN : (E2M1[code & 7] as number) * 2 ** (scale - 127);
      float[0] = code & 8 ? -magnitude : magnitude;
      made[scale * 16 + code] = Number.isNaN(magnitude) ? 0x7fc0 : (bits[0] as number) >>> 16;
    }
  return made;
}
