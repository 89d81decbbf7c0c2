import { KV_FORMS } from '../../formats/kv/forms.js';
import { figure, markdownTable, micro, page, percent, placeOf, rate, sources } from '../markdown.js';
import { contextName, headsName } from './cases.js';
import type { AttentionBench, AttentionRow } from './schema.js';

/** What a row is called in tables, and its cells; those of peers only where one was measured. */
const COLUMNS: readonly (readonly [title: string, of: (row: AttentionRow) => string, peer?: 'exactUs' | 'torchUs'])[] =
  [
    ['cache', schemeText],
    ['sequences x tokens', contextName],
    ['heads', (row) => `${headsName(row)} of ${row.headDim}`],
    ['µs', ({ us }) => micro(us)],
    ['MB', ({ bytes }) => (bytes / 1e6).toFixed(bytes < 1e7 ? 2 : 0)],
    ['share of copies', ({ copyShare }) => percent(copyShare)],
    ['f16 copied / this', ({ halfFloorRatio }) => figure(halfFloorRatio)],
    ['same over f16 / this', ({ exactRatio }) => figure(exactRatio), 'exactUs'],
    ['torch / this', ({ torchRatio }) => figure(torchRatio), 'torchUs'],
    ['append µs (of a step)', ({ append }) => `${micro(append.us)} (${percent(append.share)})`],
    ['pack µs (of copies)', ({ pack }) => `${micro(pack.us)} (${percent(pack.copyShare)})`],
  ];

export function attentionTable(rows: readonly AttentionRow[]): [head: string[], body: string[][]] {
  const columns = COLUMNS.filter(([, , peer]) => !peer || rows.some((row) => row[peer] !== null));
  return [columns.map(([title]) => title), rows.map((row) => columns.map(([, of]) => of(row)))];
}

/** The results as one Markdown table, and where peers' figures are from. */
export function attentionMarkdown({ machine, rows, copyBytesPerSecond, peers, lpq, date }: AttentionBench): string {
  const how = machine.gpu === null ? '' : ' Caches rotate past L2; median of replays of a CUDA graph.';
  return page([
    `${placeOf(machine)}; copies ${rate(copyBytesPerSecond)}; lpq ${lpq}, ${date}.${how}`,
    markdownTable(...attentionTable(rows)),
    ...sources(peers),
  ]);
}

/** KV4 channel 128: widths, granularity and group of keys. */
function schemeText({ name, scheme }: AttentionRow): string {
  const { granularity, group } = scheme.keys;
  return KV_FORMS[scheme.form].wholeHeads ? `${name} token` : `${name} ${granularity} ${group}`;
}
