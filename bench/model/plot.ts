import { LpqError } from '../../src/core/error.js';
import { escaped, f, logScale, type Scale } from '../kernels/svg.js';
import type { ModelBench, ModelRow } from './schema.js';

export interface PlotChoice {
  /** Of the plot over sequences; default: the one with most of them, and of those the shortest. */
  readonly context?: number | undefined;
  /** Of the plot over contexts; default likewise. */
  readonly m?: number | undefined;
}

export interface ModelPlot {
  readonly over: 'm' | 'context';
  readonly svg: string;
}

/** A line: tokens a second of one form of weights over a cache of so many bits. */
interface Series {
  readonly weights: string;
  readonly kv: number;
  readonly points: readonly { readonly x: number; readonly row: ModelRow }[];
}

const WORDS = {
  m: { axis: 'sequences of a step (M)', fixed: 'context' },
  context: { axis: 'tokens of each sequence (context)', fixed: 'm' },
} as const;

/** As many as the style below has; bits of keys and values are told apart by dashes. */
const COLOURS = 8;

/**
 * Tokens a second of decode steps, over sequences and over contexts: those of the two of which there are several. SVG that stands
 * alone, for light and dark pages. Throws LPQ_USAGE where there is nothing to draw, or more forms of weights than colours.
 */
export function modelPlots(bench: ModelBench, choice: PlotChoice = {}): ModelPlot[] {
  const steps = bench.rows.filter(({ phase }) => phase === 'decode');
  const names = [...new Set(steps.map(({ weights }) => weights))];
  if (names.length > COLOURS)
    throw new LpqError('LPQ_USAGE', `a plot has ${COLOURS} colours, one for each form of weights`, {
      got: `${names.length}: ${names.join(', ')}`,
      hint: 'Measure some of them apart.',
    });
  const plots = (['m', 'context'] as const).flatMap((over): ModelPlot[] => {
    const { fixed } = WORDS[over];
    const at = choice[fixed] ?? fullest(steps, over, fixed);
    const own = steps.filter((row) => row[fixed] === at);
    if (own.length === 0)
      throw new LpqError('LPQ_USAGE', `no decode step has ${fixed} ${at}`, {
        got: at,
        expected: distinct(steps, fixed).join(', ') || 'decode steps',
      });
    if (distinct(own, over).length < 2) return [];
    return [{ over, svg: draw(bench, names, over, at as number, seriesOf(own, over)) }];
  });
  if (plots.length > 0) return plots;
  throw new LpqError('LPQ_USAGE', 'a line needs decode steps of several M, or of several contexts', {
    got: steps.map(({ m, context }) => `M=${m} of ${context}`).join(', '),
    hint: 'Measure with for example --m 1,4,16,64.',
  });
}

type Axis = 'm' | 'context';

function distinct(rows: readonly ModelRow[], axis: Axis): number[] {
  return [...new Set(rows.map((row) => row[axis]))].sort((a, b) => a - b);
}

/** The value of `fixed` at which most values of `over` were measured, the least of several. */
function fullest(rows: readonly ModelRow[], over: Axis, fixed: Axis): number | undefined {
  const counted = distinct(rows, fixed).map((value) => {
    const own = rows.filter((row) => row[fixed] === value);
    return { value, count: distinct(own, over).length };
  });
  return counted.sort((a, b) => b.count - a.count || a.value - b.value)[0]?.value;
}

function seriesOf(rows: readonly ModelRow[], over: Axis): Series[] {
  const lines = new Map<string, Series & { points: { x: number; row: ModelRow }[] }>();
  for (const row of [...rows].sort((a, b) => a[over] - b[over])) {
    const { weights, kv } = row;
    const key = `${weights} ${kv}`;
    const line = lines.get(key) ?? { weights, kv, points: [] };
    line.points.push({ x: row[over], row });
    lines.set(key, line);
  }
  return [...lines.values()];
}

const [WIDTH, HEIGHT] = [860, 480];
const [LEFT, RIGHT, TOP, BOTTOM] = [86, 720, 60, 420];

function draw(bench: ModelBench, names: readonly string[], over: Axis, at: number, series: readonly Series[]): string {
  const rows = series.flatMap(({ points }) => points.map(({ row }) => row));
  const xs = distinct(rows, over);
  const x = logScale(xs[0] as number, xs.at(-1) as number, LEFT, RIGHT);
  const rates = rows.map((row) => row.tokensPerSecond);
  const y = logScale(Math.min(...rates), Math.max(...rates), BOTTOM, TOP);
  const part =
    bench.measuredBlocks < bench.blocks ? `, ${bench.measuredBlocks} of ${bench.blocks} blocks measured` : '';
  const fixed = over === 'm' ? `contexts of ${at} tokens` : `M = ${at}`;
  const machine = bench.machine.gpu ?? bench.machine.processor;
  const kinds = [...new Set(series.map(({ kv }) => kv))].sort((a, b) => b - a);
  return `${[
    head(`${bench.shape}: tokens a second of decode steps`, `${machine}, ${bench.date}; ${fixed}${part}`),
    ...xs.map((each) => vertical(x(each), each)),
    ...y.ticks.map((tick) => horizontal(y(tick), tick)),
    `<text class="text" transform="translate(20 ${(TOP + BOTTOM) / 2}) rotate(-90)" text-anchor="middle">tokens/s</text>`,
    `<text class="text" x="${(LEFT + RIGHT) / 2}" y="${HEIGHT - 14}" text-anchor="middle">${WORDS[over].axis}</text>`,
    ...series.map((each) => line(each, names.indexOf(each.weights), x, y)),
    ...names.map((name, i) => legend(i, `w${i} k16`, name)),
    ...(kinds.length > 1 ? kinds.map((kv, i) => legend(names.length + 1 + i, `plain k${kv}`, `KV${kv}`)) : []),
  ].join('\n')}\n</svg>\n`;
}

const grouped = (value: number): string => Number(value.toPrecision(3)).toLocaleString('en-US');

const vertical = (at: number, value: number): string =>
  `<line class="grid" x1="${f(at)}" x2="${f(at)}" y1="${TOP}" y2="${BOTTOM}"/><text class="faint" x="${f(at)}" y="${BOTTOM + 18}" text-anchor="middle">${value}</text>`;

const horizontal = (at: number, value: number): string =>
  `<line class="grid" x1="${LEFT}" x2="${RIGHT}" y1="${f(at)}" y2="${f(at)}"/><text class="faint" x="${LEFT - 8}" y="${f(at + 4)}" text-anchor="end">${grouped(value)}</text>`;

function line({ weights, kv, points }: Series, colour: number, x: Scale, y: Scale): string {
  const place = points.map(({ x: value, row }) => [f(x(value)), f(y(row.tokensPerSecond)), row] as const);
  const marks = place.map(([cx, cy, row]) => {
    const title = `${weights} KV${kv} M=${row.m} of ${row.context}: ${grouped(row.tokensPerSecond)} tokens/s`;
    return `<circle cx="${cx}" cy="${cy}" r="3"><title>${escaped(title)}</title></circle>`;
  });
  const path = place.map(([cx, cy]) => `${cx},${cy}`).join(' ');
  return `<g class="w${colour} k${kv}"><polyline points="${path}"/>${marks.join('')}</g>`;
}

function legend(row: number, style: string, name: string): string {
  const [at, down] = [RIGHT + 20, TOP + 14 + 20 * row];
  return `<g class="${style}"><polyline points="${at},${down} ${at + 28},${down}"/></g><text class="text" x="${at + 36}" y="${down + 4}">${escaped(name)}</text>`;
}

const LIGHT = ['#1f5fbf', '#d1661d', '#2e8540', '#7a3fb0', '#b3261e', '#0f7b83', '#7a5c1e', '#b23a7c'];
const DARK = ['#7db2ff', '#f59a5c', '#6fcf87', '#c39bff', '#ff8a80', '#5fd0d8', '#d8b46a', '#ff9bd0'];
const coloured = (colours: readonly string[]): string =>
  colours.map((each, i) => `.w${i} polyline{stroke:${each}}.w${i} circle{fill:${each}}`).join('');

function head(title: string, subtitle: string): string {
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${escaped(title)}" font-family="system-ui, sans-serif" font-size="13">
<style>
.page{fill:#fff}.text{fill:#1c2733}.faint{fill:#5a6672}.grid{stroke:#dfe4ea}polyline{fill:none;stroke-width:2}.plain polyline{stroke:#5a6672}.k8 polyline{stroke-dasharray:9 3}.k4 polyline{stroke-dasharray:5 4}.k2 polyline{stroke-dasharray:2 3}${coloured(LIGHT)}
@media (prefers-color-scheme: dark){.page{fill:#12171d}.text{fill:#e8edf2}.faint{fill:#9aa7b4}.grid{stroke:#2a333d}.plain polyline{stroke:#9aa7b4}${coloured(DARK)}}
</style>
<rect class="page" width="${WIDTH}" height="${HEIGHT}"/>
<text class="text" x="${LEFT}" y="26" font-size="16" font-weight="600">${escaped(title)}</text>
<text class="faint" x="${LEFT}" y="44">${escaped(subtitle)}</text>`;
}
