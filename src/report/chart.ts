import { escapeText, figure } from './markup.js';

/** One colour and one mark of a chart; points in the units of the axes. */
export interface Series {
  readonly label: string;
  readonly points: readonly { readonly x: number; readonly y: number; readonly title: string }[];
}

export interface LineChart {
  readonly title: string;
  readonly xLabel: string;
  readonly yLabel: string;
  readonly log?: boolean;
  /** What x counts: whole numbers (the default), or sizes. */
  readonly xKind?: 'whole' | 'real';
  /** A value of y with a line of its own. */
  readonly rule?: number;
  readonly series: readonly Series[];
}

// Room for letters of 21 units, which a phone shows at half their size (page.ts).
const [WIDTH, HEIGHT] = [720, 316];
const MARGIN = { left: 88, right: 14, top: 14, bottom: 54 };
/** Colours that the style sheet has; further series repeat them with another dash. */
export const COLOURS = 7;

/** Values over whole numbers (blocks) or sizes, a line a series, with a mark at each point that tells its value. */
export function lineChart(chart: LineChart): string {
  const { series, log = false, rule, xKind = 'whole' } = chart;
  const points = series.flatMap((each) => each.points).filter(({ y }) => Number.isFinite(y) && (!log || y > 0));
  if (points.length === 0) return '';
  const xs = points.map(({ x }) => x);
  const ys = [...points.map(({ y }) => y), ...(rule === undefined ? [] : [rule])];
  const xTicks = xKind === 'whole' ? integerTicks(least(xs), most(xs)) : linearTicks(least(xs), most(xs));
  const [x0, x1] = xKind === 'whole' ? [least(xs), most(xs)] : [xTicks[0] as number, xTicks.at(-1) as number];
  const yTicks = log ? logTicks(least(ys), most(ys)) : linearTicks(least(ys), most(ys));
  const scale = (value: number) => (log ? Math.log10(value) : value);
  const [y0, y1] = [scale(yTicks[0] as number), scale(yTicks.at(-1) as number)];
  const px = (x: number) =>
    MARGIN.left + ((x1 === x0 ? 0.5 : (x - x0) / (x1 - x0)) * 0.96 + 0.02) * (WIDTH - MARGIN.left - MARGIN.right);
  const py = (y: number) =>
    HEIGHT - MARGIN.bottom - ((scale(y) - y0) / (y1 - y0 || 1)) * (HEIGHT - MARGIN.top - MARGIN.bottom);
  const parts = [axes(chart, yTicks, xTicks, px, py)];
  if (rule !== undefined) parts.push(line('rule', px(x0), py(rule), px(x1), py(rule)));
  for (const [i, each] of series.entries()) {
    const shown = each.points.filter(({ y }) => Number.isFinite(y) && (!log || y > 0));
    const place = shown.map((p) => [round(px(p.x)), round(py(p.y))] as const);
    const dash = i < COLOURS ? '' : ' stroke-dasharray="5 4"';
    const style = `s${i % COLOURS}`;
    parts.push(`<g class="${style}">`);
    if (place.length > 1)
      parts.push(`<polyline class="line"${dash} points="${place.map(([x, y]) => `${x},${y}`).join(' ')}"/>`);
    // A point without a line has to be seen by itself, also on a phone.
    const radius = shown.length === 1 ? 7 : shown.length > 120 ? 1.5 : 3;
    for (const [j, [x, y]] of place.entries())
      parts.push(
        `<circle cx="${x}" cy="${y}" r="${radius}"><title>${escapeText(shown[j]?.title ?? '')}</title></circle>`,
      );
    parts.push('</g>');
  }
  return framed(chart.title, `${chart.yLabel} by ${chart.xLabel}`, HEIGHT, parts) + legend(series.map((s) => s.label));
}

/** Horizontal bars of one colour, each with its text at its end. */
export function barChart(
  title: string,
  bars: readonly { readonly label: string; readonly value: number; readonly text: string }[],
): string {
  if (bars.length === 0) return '';
  const top = Math.max(...bars.map(({ value }) => value), Number.MIN_VALUE);
  const left = Math.min(420, 24 + 12 * Math.max(...bars.map(({ label }) => label.length)));
  const room = Math.max(40, WIDTH - left - 12 - 12.6 * Math.max(...bars.map(({ text }) => text.length)));
  const parts = bars.flatMap(({ label, value, text }, i) => {
    const y = 8 + 26 * i;
    const width = Math.max(1, round((value / top) * room));
    return [
      `<text class="label" x="${left - 8}" y="${y + 9}" dy=".35em" text-anchor="end">${escapeText(label)}</text>`,
      `<rect class="bar" x="${left}" y="${y}" width="${width}" height="18" rx="2"><title>${escapeText(`${label}: ${text}`)}</title></rect>`,
      `<text class="value" x="${round(left + width + 6)}" y="${y + 9}" dy=".35em">${escapeText(text)}</text>`,
    ];
  });
  return framed(title, 'bars', 16 + 26 * bars.length, parts);
}

/** A grid of values, darker where they are larger: rows of blocks, columns of experts. */
export function heatMap(
  title: string,
  rows: readonly { readonly label: string; readonly values: readonly (number | null)[] }[],
  column: string,
): string {
  const columns = Math.max(...rows.map(({ values }) => values.length));
  const largest = Math.max(...rows.flatMap(({ values }) => values.map((value) => value ?? 0)), 1);
  const left = 24 + 12 * Math.max(...rows.map(({ label }) => label.length));
  const [w, h] = [(WIDTH - left - 10) / columns, Math.max(6, Math.min(24, 480 / rows.length))];
  const first = 10;
  const bottom = first + rows.length * h;
  const [everyRow, everyColumn] = [stepOf(22 / h), stepOf((12.6 * String(columns).length + 10) / w)];
  const parts = rows.flatMap(({ label, values }, r) => [
    ...(r % everyRow === 0
      ? [
          `<text class="label" x="${left - 8}" y="${round(first + (r + 0.45) * h)}" dy=".35em" text-anchor="end">${escapeText(label)}</text>`,
        ]
      : []),
    ...values.map((value, c) => {
      const style = value === 0 ? 'none' : 'heat';
      const depth = value === null ? 0 : 0.08 + 0.92 * Math.sqrt(value / largest);
      const words = `${label}, ${column} ${c}: ${value === null ? 'not known' : value}`;
      return `<rect class="${style}" x="${round(left + c * w)}" y="${round(first + r * h)}" width="${round(w * 0.94)}" height="${round(h * 0.9)}" fill-opacity="${round(value === 0 ? 1 : depth)}"><title>${escapeText(words)}</title></rect>`;
    }),
  ]);
  for (let c = 0; c < columns; c += everyColumn)
    parts.push(
      `<text class="tick" x="${round(left + (c + 0.47) * w)}" y="${round(bottom + 4)}" dy=".9em" text-anchor="middle">${c}</text>`,
    );
  parts.push(
    `<text class="tick" x="${left - 8}" y="${round(bottom + 4)}" dy=".9em" text-anchor="end">${escapeText(column)}</text>`,
  );
  return framed(title, `${column} by block`, Math.ceil(bottom + 30), parts);
}

function framed(title: string, what: string, height: number, parts: readonly string[]): string {
  return `<figure><figcaption>${escapeText(title)}</figcaption><svg viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="${escapeText(`${title}: ${what}`)}">${parts.join('')}</svg></figure>`;
}

function legend(labels: readonly string[]): string {
  if (labels.length < 2) return '';
  const entry = (label: string, i: number) =>
    `<li class="s${i % COLOURS}"><svg viewBox="0 0 22 10" width="22" height="10" aria-hidden="true"><line class="line" x1="0" y1="5" x2="22" y2="5"${i < COLOURS ? '' : ' stroke-dasharray="5 4"'}/><circle cx="11" cy="5" r="3"/></svg>${escapeText(label)}</li>`;
  return `<ul class="legend">${labels.map(entry).join('')}</ul>`;
}

function axes(
  { xLabel, yLabel }: LineChart,
  yTicks: readonly number[],
  xTicks: readonly number[],
  px: (x: number) => number,
  py: (y: number) => number,
): string {
  const bottom = HEIGHT - MARGIN.bottom;
  const middle = (MARGIN.left + WIDTH - MARGIN.right) / 2;
  return [
    ...yTicks.map(
      (y) =>
        `${line('grid', MARGIN.left, py(y), WIDTH - MARGIN.right, py(y))}<text class="tick" x="${MARGIN.left - 6}" y="${round(py(y))}" dy=".35em" text-anchor="end">${figure(y, 6)}</text>`,
    ),
    ...xTicks.map(
      (x) =>
        `<text class="tick" x="${round(px(x))}" y="${bottom + 6}" dy=".9em" text-anchor="middle">${figure(x, 6)}</text>`,
    ),
    `<text class="tick" x="${round(middle)}" y="${HEIGHT - 6}" text-anchor="middle">${escapeText(xLabel)}</text>`,
    `<text class="tick ylabel" transform="translate(14 ${round((MARGIN.top + bottom) / 2)}) rotate(-90)" text-anchor="middle">${escapeText(yLabel)}</text>`,
  ].join('');
}

function line(style: string, x1: number, y1: number, x2: number, y2: number): string {
  return `<line class="${style}" x1="${round(x1)}" y1="${round(y1)}" x2="${round(x2)}" y2="${round(y2)}"/>`;
}

/** Round steps from at or below the least value to at or above the largest. */
function linearTicks(low: number, high: number): number[] {
  if (low === high) [low, high] = low === 0 ? [0, 1] : [low - Math.abs(low) / 2, high + Math.abs(high) / 2];
  const raw = (high - low) / 5;
  const unit = 10 ** Math.floor(Math.log10(raw));
  const step = ([1, 2, 5, 10].find((factor) => factor * unit >= raw) as number) * unit;
  const first = Math.floor(low / step);
  const last = Math.ceil(high / step);
  return Array.from({ length: last - first + 1 }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/** Powers of ten; over less than two of them 1, 2 and 5 times those. */
function logTicks(low: number, high: number): number[] {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const factors = last - first <= 2 ? [1, 2, 5] : [1];
  const all: number[] = [];
  for (let power = first; power <= last; power++) for (const factor of factors) all.push(Number(`${factor}e${power}`));
  const from = all.findLastIndex((tick) => tick <= low);
  const to = all.findIndex((tick) => tick >= high);
  const ticks = all.slice(Math.max(0, from), (to < 0 ? all.length : to) + 1);
  return ticks.length > 1 ? ticks : [low / 2, low, low * 2];
}

/** The least of these that is not below `least`: every so many labels have room. */
function stepOf(least: number): number {
  return [1, 2, 4, 5, 8, 10, 16, 20, 32, 50, 64].find((step) => step >= least) ?? Math.ceil(least);
}

function integerTicks(low: number, high: number): number[] {
  const step = Math.max(1, Math.ceil((high - low) / 12));
  const ticks: number[] = [];
  for (let x = low; x <= high; x += step) ticks.push(x);
  return ticks;
}

const least = (values: readonly number[]) => values.reduce((a, b) => Math.min(a, b));
const most = (values: readonly number[]) => values.reduce((a, b) => Math.max(a, b));
const round = (value: number) => Math.round(value * 100) / 100;
