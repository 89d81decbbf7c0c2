/** Magnitudes of E2M1 by the low three bits of a code. */
const E2M1: readonly number[] = [0, 0.5, 1, 1.5, 2, 3, 4, 6];

/**
 * One expert as the architecture stores it in floats: BF16 [K, N], transposed, value = code * 2^(scale - 127). Exact but
 * for E8M0 exponents below -126 (a code of 0.5 or 1.5 falls among BF16's subnormals, rounded to even as torch does) and
 * above (infinity); 255 is NaN. blocks U8 [N, K/2], even codes low; scales U8 [N, K/32].
 */
export function mxfp4ToBf16(blocks: Uint8Array, scales: Uint8Array, n: number, k: number, out: Uint16Array): void {
  const table = bf16Table();
  const rowBytes = k / 2;
  const rowScales = k / 32;
  const TILE = 32;
  // Tiles of 32 x 32: a tile of a row is one block, and the columns written stay in the cache.
  for (let n0 = 0; n0 < n; n0 += TILE)
    for (let block = 0; block < rowScales; block++)
      for (let row = n0; row < Math.min(n, n0 + TILE); row++) {
        const first = (scales[row * rowScales + block] as number) * 16;
        const from = row * rowBytes + block * 16;
        let to = block * 32 * n + row;
        for (let byte = 0; byte < 16; byte++) {
          const two = blocks[from + byte] as number;
          out[to] = table[first + (two & 15)] as number;
          out[to + n] = table[first + (two >> 4)] as number;
          to += 2 * n;
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
      const pattern = bits[0] as number;
      const rounded = Number.isNaN(magnitude) ? 0x7fc0 : (pattern + 0x7fff + ((pattern >>> 16) & 1)) >>> 16;
      made[scale * 16 + code] = rounded;
    }
  return made;
}
