import { type MemoryLayout, memoryLayout } from '../../layout/memory.js';

const WORD = 32;

/**
 * I32 [rows, ceil(columns * bits / 32)]: each row a little-endian bitstream, padded with zero bits to whole words
 * (compressed-tensors weight_packed of codes [N, K]).
 */
export function rowStreams(rows: number, columns: number, bits: number): MemoryLayout {
  const words = Math.ceil((columns * bits) / WORD);
  return memoryLayout({
    bits,
    rows: [{ size: rows, stride: words * WORD }],
    columns: [{ size: columns, stride: bits }],
    bytes: rows * words * 4,
  });
}

/** Values a word where a format leaves the top bits of words unused: 10 of 3 bits. */
const perWord = (bits: number): number => Math.floor(WORD / bits);

/** I32 [rows, ceil(columns / (32 div bits))]: whole codes only in each word (compressed-tensors before 0.13). */
export function wholeWordRows(rows: number, columns: number, bits: number): MemoryLayout {
  const words = Math.ceil(columns / perWord(bits));
  return memoryLayout({
    bits,
    rows: [{ size: rows, stride: words * WORD }],
    columns: [
      { size: words, stride: WORD },
      { size: perWord(bits), stride: bits },
    ],
    bytes: rows * words * 4,
  });
}

/** As wholeWordRows, down the columns of the transposed matrix: I32 [ceil(rows / (32 div bits)), columns] of zeros [N, G]. */
export function wholeWordColumns(rows: number, columns: number, bits: number): MemoryLayout {
  const words = Math.ceil(rows / perWord(bits));
  return memoryLayout({
    bits,
    rows: [
      { size: words, stride: columns * WORD },
      { size: perWord(bits), stride: bits },
    ],
    columns: [{ size: columns, stride: WORD }],
    bytes: words * columns * 4,
  });
}

/**
 * I32 [ceil(columns * bits / 32), rows]: each row of the matrix a bitstream that runs down a column of words (GPTQ
 * qweight of codes [N, K]). A code may straddle two words, which lie `rows` words apart.
 */
export function columnStreams(rows: number, columns: number, bits: number): MemoryLayout {
  const words = Math.ceil((columns * bits) / WORD);
  return memoryLayout({
    bits,
    rows: [{ size: rows, stride: WORD }],
    columns: [{ size: columns, stride: bits, stream: true }],
    unit: { bits: WORD, stride: rows * WORD },
    bytes: rows * words * 4,
  });
}

/** As rowStreams of the transposed matrix: I32 [columns, ceil(rows * bits / 32)] (GPTQ qzeros of zeros [N, G]). */
export function transposedRowStreams(rows: number, columns: number, bits: number): MemoryLayout {
  const { rows: a, columns: b, ...rest } = rowStreams(columns, rows, bits);
  return memoryLayout({ ...rest, rows: b, columns: a });
}

/** As columnStreams of the transposed matrix: I32 [ceil(rows * bits / 32), columns] (weight_zero_point of zeros [N, G]). */
export function transposedColumnStreams(rows: number, columns: number, bits: number): MemoryLayout {
  const { rows: a, columns: b, ...rest } = columnStreams(columns, rows, bits);
  return memoryLayout({ ...rest, rows: b, columns: a });
}

/** Elements [rows, columns] of 16 or 32 bits, transposed: GPTQ scales F16 [G, N] of scales [N, G]. */
export function transposed(rows: number, columns: number, bits: 16 | 32): MemoryLayout {
  return memoryLayout({
    bits,
    rows: [{ size: rows, stride: bits }],
    columns: [{ size: columns, stride: rows * bits }],
    bytes: (rows * columns * bits) / 8,
  });
}
