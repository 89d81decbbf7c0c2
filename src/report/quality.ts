import { lineChart } from './chart.js';
import { byteCount, escapeText, figure, knownColumns, withError } from './markup.js';
import { note, page, section } from './page.js';
import { BOUNDS } from './verdict.js';

/** A mean, and its standard error where there is one. */
interface Measured {
  readonly mean: number;
  readonly error: number | null;
}

/** A checkpoint among others: bytes of its files with weights, and what it makes of a text. */
export interface Compared {
  readonly name: string;
  readonly bytes: number;
  /** Of the whole model: 8 bytes over the weights of its matrices. */
  readonly bitsPerWeight: number;
  readonly ppl: Measured;
  /** KL(source || this) in nats per token, and how often both think the same token the likeliest; null without a source. */
  readonly kl: Measured | null;
  readonly sameTop: Measured | null;
  readonly windows: number;
  /** Of one sequence; null where it was not timed. */
  readonly tokensPerSecond: number | null;
  readonly device: string;
}

export interface ComparedText {
  readonly text: string;
  readonly ctx: number;
  readonly windows: number;
  readonly source: string | null;
}

/** Titles of the columns that something is known of. */
export function comparedHead(rows: readonly Compared[]): string[] {
  return [
    ...['checkpoint', 'size', 'bits per weight', 'perplexity'],
    ...(rows.some(({ kl }) => kl) ? ['KL, nats per token', 'same top token, %'] : []),
    ...(rows.some(({ tokensPerSecond }) => tokensPerSecond !== null) ? ['tokens/s'] : []),
  ];
}

/** The cells of a row; `all`: the rows that the columns are of. */
export function comparedRow({ kl, sameTop, ...row }: Compared, all: readonly Compared[]): string[] {
  const shown = (value: Measured | null, factor = 1) =>
    value ? withError(factor * value.mean, value.error === null ? null : factor * value.error) : '–';
  return [
    ...[row.name, byteCount(row.bytes), figure(row.bitsPerWeight, 4), shown(row.ppl)],
    ...(all.some((each) => each.kl) ? [shown(kl), shown(sameTop, 100)] : []),
    ...(all.some((each) => each.tokensPerSecond !== null) ? [figure(row.tokensPerSecond)] : []),
  ];
}

/** A page with quality over size: KL where there is a source, else perplexity. */
export function qualityPage(rows: readonly Compared[], { text, ctx, windows, source }: ComparedText): string {
  const scale = Math.max(...rows.map(({ bytes }) => bytes)) >= 1e9 ? 1e9 : 1e6;
  const unit = scale === 1e9 ? 'GB' : 'MB';
  const value = ({ kl, ppl }: Compared) => (source === null ? ppl.mean : (kl?.mean ?? null));
  const what = source === null ? 'perplexity' : 'KL, nats per token';
  const plotted = rows.filter((row) => value(row) !== null);
  const chart = lineChart({
    title:
      source === null ? `Perplexity over size (${unit})` : `KL from the source (nats per token) over size (${unit})`,
    xLabel: unit,
    yLabel: what,
    xKind: 'real',
    series: plotted.map((row) => {
      const [x, y] = [row.bytes / scale, value(row) as number];
      return { label: row.name, points: [{ x, y, title: `${row.name}: ${figure(x)} ${unit}, ${what} ${figure(y)}` }] };
    }),
  });
  const names = rows.map(({ name }) => name).join(', ');
  return page(`${names} – lpq compare`, [
    `<h1>${escapeText(names)}</h1>`,
    note(`Read on ${text}: ${windows} windows of ${ctx} tokens${source === null ? '' : `; KL from ${source}`}.`),
    chart,
    note('Left is smaller, down is better.'),
    section(
      'Figures',
      knownColumns(
        comparedHead(rows),
        rows.map((row) => comparedRow(row, rows)),
      ),
      note(
        `Errors are standard errors over windows. lpq calls KL up to ${BOUNDS.kl.close} nats per token close, and up to ${BOUNDS.kl.noticeable} noticeable. Size: files with weights; bits per weight: of the whole model, embeddings included.`,
      ),
    ),
  ]);
}
