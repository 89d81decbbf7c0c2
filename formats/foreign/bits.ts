/** [rows, columns] -> [columns, rows], tile by tile so that both sides stay in the cache. */
export function transposeWords(data: Int32Array, rows: number, columns: number): Int32Array<ArrayBuffer> {
  const out = new Int32Array(rows * columns);
  transposeInto(data, out, rows, columns);
  return out;
}

/** The same for 16-bit elements. */
export function transposeHalves(data: Uint16Array, rows: number, columns: number): Uint16Array<ArrayBuffer> {
  const out = new Uint16Array(rows * columns);
  transposeInto(data, out, rows, columns);
  return out;
}

/** The same for f32. */
export function transposeFloats(data: Float32Array, rows: number, columns: number): Float32Array<ArrayBuffer> {
  const out = new Float32Array(rows * columns);
  transposeInto(data, out, rows, columns);
  return out;
}

const TILE = 32;

interface Numbers {
  [index: number]: number;
}

function transposeInto(from: Numbers, to: Numbers, rows: number, columns: number): void {
  for (let r0 = 0; r0 < rows; r0 += TILE)
    for (let c0 = 0; c0 < columns; c0 += TILE) {
      const r1 = Math.min(rows, r0 + TILE);
      const c1 = Math.min(columns, c0 + TILE);
      for (let c = c0; c < c1; c++) for (let r = r0; r < r1; r++) to[c * rows + r] = from[r * columns + c] as number;
    }
}

/**
 * Rows of 32-bit words, each a little-endian stream of `count` codes, as rows of whole bytes: [rows, words] ->
 * [rows, ceil(count * bits / 8)], what follows the last code cleared.
 */
export function wordsToStream(words: Int32Array, rows: number, count: number, bits: number): Uint8Array<ArrayBuffer> {
  const rowWords = words.length / rows;
  const rowBytes = Math.ceil((count * bits) / 8);
  const bytes = new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
  const tail = (count * bits) % 8;
  const out = new Uint8Array(rows * rowBytes);
  if (rowBytes === rowWords * 4) out.set(bytes);
  else
    for (let row = 0; row < rows; row++)
      out.set(bytes.subarray(row * rowWords * 4, row * rowWords * 4 + rowBytes), row * rowBytes);
  if (tail > 0)
    for (let row = 1; row <= rows; row++) {
      const last = row * rowBytes - 1;
      out[last] = (out[last] as number) & (2 ** tail - 1);
    }
  return out;
}

/** Codes, one a byte, as rows of a little-endian bitstream: [rows, count] -> [rows, ceil(count * bits / 8)]. */
export function codesToStream(codes: Uint8Array, rows: number, count: number, bits: number): Uint8Array<ArrayBuffer> {
  const rowBytes = Math.ceil((count * bits) / 8);
  const out = new Uint8Array(rows * rowBytes);
  for (let row = 0; row < rows; row++) {
    let held = 0;
    let filled = 0;
    let at = row * rowBytes;
    for (let i = row * count; i < (row + 1) * count; i++) {
      held |= (codes[i] as number) << filled;
      filled += bits;
      if (filled >= 8) {
        out[at++] = held & 255;
        held >>>= 8;
        filled -= 8;
      }
    }
    if (filled > 0) out[at] = held;
  }
  return out;
}

/**
 * Field i of a run of words: word w is data[base + w * stride]. `perWord` whole fields fill each word (older
 * compressed-tensors); 0 means one dense stream.
 */
export function fieldOf(data: Int32Array, base: number, stride: number, i: number, bits: number, perWord = 0): number {
  const bit = perWord > 0 ? Math.floor(i / perWord) * 32 + (i % perWord) * bits : i * bits;
  const word = base + Math.floor(bit / 32) * stride;
  const shift = bit % 32;
  let value = (data[word] as number) >>> shift;
  if (shift + bits > 32) value |= (data[word + stride] as number) << (32 - shift);
  return value & (2 ** bits - 1);
}
