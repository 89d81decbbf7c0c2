import type { Machine } from './record.js';

/** A table of Markdown. */
export function markdownTable(head: readonly string[], body: readonly (readonly string[])[]): string {
  return [head, head.map(() => '-'), ...body].map((cells) => `| ${cells.join(' | ')} |`).join('\n');
}

/** Paragraphs and tables, with a blank line between them; what is empty is left out. */
export const page = (parts: readonly string[]): string => `${parts.filter((part) => part !== '').join('\n\n')}\n`;

export const placeOf = ({ gpu, processor, threads }: Machine): string => gpu ?? `${processor}, ${threads} threads`;
export const rate = (perSecond: number): string =>
  perSecond < 1e12 ? `${(perSecond / 1e9).toFixed(1)} GB/s` : `${(perSecond / 1e12).toFixed(2)} TB/s`;
export const micro = (us: number): string => (us < 10 ? us.toFixed(2) : us < 100 ? us.toFixed(1) : us.toFixed(0));
export const percent = (share: number): string => (share < 0.01 ? '<1 %' : `${(100 * share).toFixed(0)} %`);
/** '-' for what was not measured. */
export const figure = (value: number | null, digits = 2): string => (value === null ? '-' : value.toFixed(digits));
/** Where peers' figures are from. */
export const sources = (peers: Readonly<Record<string, string>>): string[] =>
  Object.entries(peers).map(([name, source]) => `${name}: ${source}.`);
