import { bitPositions, extents, type MemoryLayout } from '../../../src/layout/memory.js';
import { alignRows } from './print.js';

/**
 * The elements of words [first, first + count) of a pack layout: one line a word, its fields from the lowest bit up as
 * (column,row), which for weights is (k,n). A field that holds only part of an element's bits names them: (k,n)[2..].
 * Enumerates the whole layout, so give it a small one.
 */
export function printWords(layout: MemoryLayout, first: number, count: number, wordBits = 32): string {
  const [rows, columns] = extents(layout);
  const words = Array.from({ length: count }, (): { at: number; text: string }[] => []);
  for (let row = 0; row < rows; row++)
    for (let column = 0; column < columns; column++) {
      const positions = bitPositions(layout, row, column);
      for (let bit = 0; bit < positions.length; bit++) {
        const at = positions[bit]!;
        const starts = bit === 0 || positions[bit - 1] !== at - 1 || at % wordBits === 0;
        const word = words[Math.floor(at / wordBits) - first];
        if (!starts || !word) continue;
        let end = bit + 1;
        while (end < positions.length && positions[end] === positions[end - 1]! + 1 && positions[end]! % wordBits !== 0)
          end++;
        const part = end - bit === layout.bits ? '' : end - bit === 1 ? `[${bit}]` : `[${bit}-${end - 1}]`;
        word.push({ at: at % wordBits, text: `(${column},${row})${part}` });
      }
    }
  const lines = words.map((word) => word.sort((a, b) => a.at - b.at).map(({ text }) => text));
  const widest = Math.max(...lines.map((line) => line.length));
  return alignRows([
    ['word', ...Array.from({ length: widest }, (_, field) => `#${field}`)],
    ...lines.map((line, i) => [String(first + i), ...line]),
  ]);
}
