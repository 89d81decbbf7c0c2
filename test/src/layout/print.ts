import { LpqError } from '../../../src/core/error.js';
import { indexAt, type Layout, localCount, threadCount } from '../../../src/layout/layout.js';
import { locate } from './locate.js';

/** The four attributes on one line. */
export function printLayout(value: Layout): string {
  const list = (numbers: readonly number[]): string => `[${numbers.join(', ')}]`;
  return `shape ${list(value.shape)} modes ${list(value.modeShape)} spatial ${list(value.spatialModes)} local ${list(value.localModes)}`;
}

/** A two-dimensional layout as a grid of thread:local, rows down; replicas are listed with commas (Tilus, Fig. 4). */
export function printGrid(value: Layout): string {
  const [rows, columns] = twoDimensional(value);
  return alignRows(
    Array.from({ length: rows }, (_, row) =>
      Array.from({ length: columns }, (_, column) => {
        const { threads, local } = locate(value, [row, column]);
        return `${threads.join(',')}:${local}`;
      }),
    ),
  );
}

/** A layout as a table: one line a thread, the (row, column) of each of its elements in order. */
export function printThreads(value: Layout, threads = threadCount(value)): string {
  return alignRows([
    ['thread', ...Array.from({ length: localCount(value) }, (_, local) => `v${local}`)],
    ...Array.from({ length: threads }, (_, thread) => [
      String(thread),
      ...Array.from({ length: localCount(value) }, (_, local) => `(${indexAt(value, thread, local).join(',')})`),
    ]),
  ]);
}

/** Cells padded on the left to the width of their column. */
export function alignRows(rows: readonly (readonly string[])[]): string {
  const widths: number[] = [];
  for (const row of rows) for (const [i, cell] of row.entries()) widths[i] = Math.max(widths[i] ?? 0, cell.length);
  return rows.map((row) => row.map((cell, i) => cell.padStart(widths[i]!)).join('  ')).join('\n');
}

function twoDimensional(value: Layout): [number, number] {
  const [rows, columns, ...more] = value.shape;
  if (rows === undefined || columns === undefined || more.length > 0)
    throw new LpqError('LPQ_LAYOUT', 'only two-dimensional layouts print as a grid', { got: `shape [${value.shape}]` });
  return [rows, columns];
}
