import { type MemoryLayout, memoryLayout } from '../../layout/memory.js';

/**
 * I32 [columns, rows/8] of a matrix [rows, columns] of nibbles: word (column, c) holds rows 8c to 8c + 7, the even ones in
 * its low half and the odd ones in its high half (AWQ qweight of codes [N, K], qzeros of zeros [N, G]). Row 8c + j sits
 * in nibble 4 (j mod 2) + j div 2.
 */
export function awqWords(rows: number, columns: number): MemoryLayout {
  return memoryLayout({
    bits: 4,
    rows: [
      { size: rows / 8, stride: 32 },
      { size: 4, stride: 4 },
      { size: 2, stride: 16 },
    ],
    columns: [{ size: columns, stride: rows * 4 }],
    bytes: (rows * columns) / 2,
  });
}
