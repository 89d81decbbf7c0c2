/** Columns that share a word. */
export const AWQ_COLUMNS = 8;

/** Nibble i of a word holds column ORDER[i] of its eight (AutoAWQ's GEMM kernels read them in this order). */
const ORDER: readonly number[] = [0, 2, 4, 6, 1, 3, 5, 7];

/** Shift of each of the eight columns inside its word: the inverse of ORDER, in bits. */
const SHIFT: readonly number[] = Array.from({ length: AWQ_COLUMNS }, (_, column) => 4 * ORDER.indexOf(column));

/** qweight I32 [K, N/8] as rows of a 4-bit stream, U8 [N, ceil(K/2)]: code k of a row in nibble k. */
export function awqCodes(qweight: Int32Array, k: number, n: number): Uint8Array<ArrayBuffer> {
  const rowWords = n / AWQ_COLUMNS;
  const rowBytes = Math.ceil(k / 2);
  const out = new Uint8Array(n * rowBytes);
  // Two rows of words fill whole bytes; a run of bytes at a time keeps the eight rows written in the cache.
  const RUN = 64;
  for (let first = 0; first < rowBytes; first += RUN) {
    const last = Math.min(rowBytes, first + RUN);
    for (let c = 0; c < rowWords; c++)
      for (let column = 0; column < AWQ_COLUMNS; column++) {
        const shift = SHIFT[column] as number;
        const row = (c * AWQ_COLUMNS + column) * rowBytes;
        for (let byte = first; byte < last; byte++) {
          const low = ((qweight[2 * byte * rowWords + c] as number) >>> shift) & 15;
          const high = 2 * byte + 1 < k ? ((qweight[(2 * byte + 1) * rowWords + c] as number) >>> shift) & 15 : 0;
          out[row + byte] = low | (high << 4);
        }
      }
  }
  return out;
}

/** qzeros I32 [G, N/8] as zero points U8 [N, G]. */
export function awqZeros(qzeros: Int32Array, groups: number, n: number): Uint8Array<ArrayBuffer> {
  const rowWords = n / AWQ_COLUMNS;
  const out = new Uint8Array(n * groups);
  for (let g = 0; g < groups; g++)
    for (let row = 0; row < n; row++) {
      const word = qzeros[g * rowWords + Math.floor(row / AWQ_COLUMNS)] as number;
      out[row * groups + g] = (word >>> (SHIFT[row % AWQ_COLUMNS] as number)) & 15;
    }
  return out;
}
