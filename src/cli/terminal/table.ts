import { oneLine } from '../../core/visible.js';

/** A text table: columns as wide as their widest cell; numbers (and '-') to the right, the rest to the left. */
export function table(titles: readonly string[], cells: readonly (readonly string[])[]): string {
  const [head, ...rows] = [titles, ...cells].map((row) => row.map(oneLine)) as [string[], ...string[][]];
  const right = head.map(
    (_, c) => rows.length > 0 && rows.every((row) => /^(-|[-+]?[\d.]+(e[-+]?\d+)?%?( \w{1,2})?)$/.test(row[c] ?? '')),
  );
  const width = head.map((title, c) => Math.max(title.length, ...rows.map((row) => (row[c] ?? '').length)));
  const line = (cells: readonly string[]) =>
    cells
      .map((cell, c) => (right[c] ? cell.padStart(width[c] as number) : cell.padEnd(width[c] as number)))
      .join('  ')
      .trimEnd();
  return [line(head), ...rows.map(line)].map((text) => `${text}\n`).join('');
}

/** Label and value, one pair a line. */
export function facts(pairs: readonly (readonly [string, string])[]): string {
  const width = Math.max(...pairs.map(([label]) => label.length));
  return pairs.map(([label, value]) => `${label.padEnd(width)}  ${oneLine(value)}\n`).join('');
}
