import { KV_FORMS } from '../../formats/kv/forms.js';
import { contextName, headsName } from './cases.js';
import type { AttentionBench, AttentionRow } from './schema.js';

/** The results as one Markdown table, and where peers' figures are from. */
export function attentionMarkdown(bench: AttentionBench): string {
  const { machine, rows, copyBytesPerSecond, peers } = bench;
  const where = machine.gpu ?? `${machine.processor}, ${machine.threads} threads`;
  const speed =
    copyBytesPerSecond < 1e12
      ? `${(copyBytesPerSecond / 1e9).toFixed(1)} GB/s`
      : `${(copyBytesPerSecond / 1e12).toFixed(2)} TB/s`;
  const [exact, torch] = [rows.some(({ exactUs }) => exactUs !== null), rows.some(({ torchUs }) => torchUs !== null)];
  const head = [
    'cache',
    'sequences x tokens',
    'heads',
    'µs',
    'MB',
    'share of copies',
    'f16 at the speed of copies / this',
    ...(exact ? ['this kernel over f16 / this'] : []),
    ...(torch ? ['torch / this'] : []),
    'append µs (share of a step)',
    'pack µs (share of copies)',
  ];
  const parts = [
    `${where}; copies ${speed}; lpq ${bench.lpq}, ${bench.date}.${machine.gpu === null ? '' : ' Caches rotate past L2; median of replays of a CUDA graph.'}`,
    [head, head.map(() => '-'), ...rows.map((row) => cells(row, exact, torch))]
      .map((line) => `| ${line.join(' | ')} |`)
      .join('\n'),
    ...Object.entries(peers).map(([name, source]) => `${name}: ${source}.`),
  ];
  return `${parts.join('\n\n')}\n`;
}

function cells(row: AttentionRow, exact: boolean, torch: boolean): string[] {
  const ratio = (value: number | null): string => (value === null ? '-' : value.toFixed(2));
  return [
    schemeText(row),
    contextName(row),
    `${headsName(row)} of ${row.headDim}`,
    micro(row.us),
    (row.bytes / 1e6).toFixed(row.bytes < 1e7 ? 2 : 0),
    percent(row.copyShare),
    ratio(row.halfFloorRatio),
    ...(exact ? [ratio(row.exactRatio)] : []),
    ...(torch ? [ratio(row.torchRatio)] : []),
    `${micro(row.append.us)} (${percent(row.append.share)})`,
    `${micro(row.pack.us)} (${percent(row.pack.copyShare)})`,
  ];
}

/** KV4 channel 128: widths, granularity and group of keys. */
export function schemeText({ name, scheme }: Pick<AttentionRow, 'name' | 'scheme'>): string {
  const { granularity, group } = scheme.keys;
  return KV_FORMS[scheme.form].wholeHeads ? `${name} token` : `${name} ${granularity} ${group}`;
}

export const micro = (us: number): string => (us < 10 ? us.toFixed(2) : us < 100 ? us.toFixed(1) : us.toFixed(0));
export const percent = (share: number): string => (share < 0.01 ? '<1 %' : `${(100 * share).toFixed(0)} %`);
