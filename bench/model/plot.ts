import { LpqError } from '../../src/core/error.js';
import { chartSvg, LEFT, logScale, RIGHT, TOP } from '../chart.js';
import type { ModelBench, ModelRow } from './schema.js';

interface PlotChoice {
  /** Of the plot over sequences; default: the one with most of them, and of those the shortest. */
  readonly context?: number | undefined;
  /** Of the plot over contexts; default likewise. */
  readonly m?: number | undefined;
}

interface ModelPlot {
  readonly over: 'm' | 'context';
  readonly svg: string;
}

const WORDS = {
  m: { axis: 'sequences of a step (M)', fixed: 'context' },
  context: { axis: 'tokens of each sequence (context)', fixed: 'm' },
} as const;

/** As many as the style below has; bits of keys and values are told apart by dashes. */
const COLOURS = 8;

/**
 * Tokens a second of decode steps, over sequences and over contexts: those of the two of which there are several. Throws LPQ_USAGE where there is nothing to draw, or more forms of weights than colours.
 */
export function modelPlots(bench: ModelBench, choice: PlotChoice = {}): ModelPlot[] {
  const steps = bench.rows.filter(({ phase }) => phase === 'decode');
  const names = [...new Set(steps.map(({ weights }) => weights))];
  if (names.length > COLOURS)
    throw new LpqError('LPQ_USAGE', `a plot has ${COLOURS} colours, one for each form of weights`, {
      got: `${names.length}: ${names.join(', ')}`,
      hint: 'Measure some of them separately.',
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
    return [{ over, svg: draw(bench, names, over, at as number, own) }];
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

const BOTTOM = 420;
const grouped = (value: number): string => Number(value.toPrecision(3)).toLocaleString('en-US');

/** A line for each form of weights over a cache of so many bits. */
function draw(bench: ModelBench, names: readonly string[], over: Axis, at: number, rows: readonly ModelRow[]): string {
  const xs = distinct(rows, over);
  const scale = logScale(xs[0] as number, xs.at(-1) as number, LEFT, RIGHT);
  const rates = rows.map((row) => row.tokensPerSecond);
  const part =
    bench.measuredBlocks < bench.blocks ? `, ${bench.measuredBlocks} of ${bench.blocks} blocks measured` : '';
  const fixed = over === 'm' ? `contexts of ${at} tokens` : `M = ${at}`;
  const kinds = [...new Set(rows.map(({ kv }) => kv))].sort((a, b) => b - a);
  const lines = new Map<string, ModelRow[]>();
  for (const row of [...rows].sort((a, b) => a[over] - b[over])) {
    const style = `w${names.indexOf(row.weights)} k${row.kv}`;
    lines.set(style, [...(lines.get(style) ?? []), row]);
  }
  return chartSvg({
    title: `${bench.shape}: tokens a second of decode steps`,
    subtitle: `${bench.machine.gpu ?? bench.machine.processor}, ${bench.date}; ${fixed}${part}`,
    css: [
      `${DASHES}.plain polyline{stroke:#5a6672}${coloured(LIGHT)}`,
      `.plain polyline{stroke:#9aa7b4}${coloured(DARK)}`,
    ],
    x: Object.assign((value: number) => scale(value), { low: scale.low, high: scale.high, ticks: xs }),
    ...{ xLabel: WORDS[over].axis, xText: String },
    panels: [
      {
        ...{ top: TOP, bottom: BOTTOM, label: 'tokens/s', text: grouped },
        y: logScale(Math.min(...rates), Math.max(...rates), BOTTOM, TOP),
        series: [...lines].map(([style, own]) => ({
          style,
          joined: true,
          points: own.map((row) => pointOf(row, over)),
        })),
      },
    ],
    legend: [
      ...names.map((name, i) => [`w${i} k16`, name] as const),
      ...(kinds.length > 1 ? kinds.map((kv) => [`plain k${kv}`, `KV${kv}`] as const) : []),
    ],
  });
}

function pointOf(row: ModelRow, over: Axis) {
  const { weights, kv, m, context, tokensPerSecond } = row;
  const title = `${weights} KV${kv} M=${m} of ${context}: ${grouped(tokensPerSecond)} tokens/s`;
  return { x: row[over], y: tokensPerSecond, title };
}

const DASHES =
  '.plain circle{display:none}.k8 polyline{stroke-dasharray:9 3}.k4 polyline{stroke-dasharray:5 4}.k2 polyline{stroke-dasharray:2 3}';
const LIGHT = ['#1f5fbf', '#d1661d', '#2e8540', '#7a3fb0', '#b3261e', '#0f7b83', '#7a5c1e', '#b23a7c'];
const DARK = ['#7db2ff', '#f59a5c', '#6fcf87', '#c39bff', '#ff8a80', '#5fd0d8', '#d8b46a', '#ff9bd0'];
const coloured = (colours: readonly string[]): string =>
  colours.map((each, i) => `.w${i} polyline{stroke:${each}}.w${i} circle{fill:${each}}`).join('');
