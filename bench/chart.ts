/** An axis: where a value lies, from `low` to `high`, and which values have a line. */
export interface Scale {
  (value: number): number;
  readonly low: number;
  readonly high: number;
  readonly ticks: readonly number[];
}

/** Ticks at powers of ten, and between them where there are few. */
export function logScale(least: number, most: number, from: number, to: number): Scale {
  const [low, high] = [least / 1.3, Math.max(most, least * 3) * 1.1];
  const [a, b] = [Math.log10(low), Math.log10(high)];
  const steps = b - a < 2 ? [1, 2, 5] : [1];
  const decades = Array.from({ length: Math.ceil(b) - Math.floor(a) + 1 }, (_, i) => 10 ** (Math.floor(a) + i));
  const ticks = decades
    .flatMap((each) => steps.map((step) => each * step))
    .filter((each) => each >= low && each <= high);
  const map = (value: number) => from + ((Math.log10(value) - a) / (b - a)) * (to - from);
  return Object.assign(map, { low, high, ticks });
}

const WIDTH = 860;
/** The area of a plot, without its lower end. */
export const [LEFT, RIGHT, TOP] = [86, 720, 60];

interface Series {
  /** Classes of its marks. */
  readonly style: string;
  readonly points: readonly { readonly x: number; readonly y: number; readonly title: string }[];
  /** Whether a line joins the points. */
  readonly joined?: boolean;
}

interface Panel {
  readonly top: number;
  readonly bottom: number;
  readonly label: string;
  readonly y: Scale;
  readonly text?: (tick: number) => string;
  readonly series: readonly Series[];
  /** More markup, below the series. */
  readonly more?: string;
}

export interface Chart {
  readonly title: string;
  readonly subtitle: string;
  /** Rules of a style sheet: for light pages, and what is otherwise on dark ones. */
  readonly css: readonly [light: string, dark: string];
  readonly x: Scale;
  readonly xLabel: string;
  readonly xText?: (tick: number) => string;
  readonly panels: readonly Panel[];
  readonly legend: readonly (readonly [style: string, name: string])[];
}

/** A coordinate. */
export const f = (value: number): string => value.toFixed(1);
/** A number at a tick. */
const plain = (value: number): string =>
  value >= 1e4 || value < 1e-3 ? value.toExponential(0) : String(Number(value.toPrecision(3)));
const escaped = (text: string): string =>
  text.replace(/[&<>"]/g, (sign) => ({ '&': '&amp;', '<': '&lt;', '>': '&gt;', '"': '&quot;' })[sign]!);

/** A chart as SVG that stands alone, for light and dark pages. */
export function chartSvg({
  title,
  subtitle,
  css: [light, dark],
  x,
  xLabel,
  xText = plain,
  panels,
  legend,
}: Chart): string {
  const bottom = panels.at(-1)!.bottom;
  const height = bottom + 60;
  const middle = (LEFT + RIGHT) / 2;
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${height}" role="img" aria-label="${escaped(title)}" font-family="system-ui, sans-serif" font-size="13">
<style>
.page{fill:#fff}.text{fill:#1c2733}.faint{fill:#5a6672}.grid{stroke:#dfe4ea}.rule{stroke:#1c2733;stroke-width:1.5;fill:none}polyline{fill:none;stroke-width:2}${light}
@media (prefers-color-scheme: dark){.page{fill:#12171d}.text{fill:#e8edf2}.faint{fill:#9aa7b4}.grid{stroke:#2a333d}.rule{stroke:#e8edf2}${dark}}
</style>
<rect class="page" width="${WIDTH}" height="${height}"/>
<text class="text" x="${LEFT}" y="26" font-size="16" font-weight="600">${escaped(title)}</text>
<text class="faint" x="${LEFT}" y="44">${escaped(subtitle)}</text>
${[
  ...panels.map((panel) => panelSvg(panel, x)),
  ...x.ticks.map((tick) => label(x(tick), bottom + 18, 'middle', xText(tick), 'faint')),
  label(middle, height - 14, 'middle', xLabel),
  ...legend.map(([style, name], i) => {
    const [at, down] = [RIGHT + 20, TOP + 14 + 20 * i];
    return `<g class="${style}"><circle cx="${at + 14}" cy="${down}" r="4"/><polyline points="${at},${down} ${at + 28},${down}"/></g>${label(at + 36, down + 4, 'start', name)}`;
  }),
].join('\n')}
</svg>
`;
}

function panelSvg({ top, bottom, label: name, y, text = plain, series, more = '' }: Panel, x: Scale): string {
  return [
    ...x.ticks.map((tick) => line('grid', x(tick), top, x(tick), bottom)),
    ...y.ticks.map(
      (tick) => line('grid', LEFT, y(tick), RIGHT, y(tick)) + label(LEFT - 8, y(tick) + 4, 'end', text(tick), 'faint'),
    ),
    `<text class="text" transform="translate(20 ${(top + bottom) / 2}) rotate(-90)" text-anchor="middle">${name}</text>`,
    more,
    ...series.map(({ style, points, joined }) => {
      const places = points.map((point) => [f(x(point.x)), f(y(point.y)), point.title] as const);
      const path = joined ? `<polyline points="${places.map(([cx, cy]) => `${cx},${cy}`).join(' ')}"/>` : '';
      const marks = places.map(
        ([cx, cy, title]) =>
          `<circle cx="${cx}" cy="${cy}" r="${joined ? 3 : 4.5}"><title>${escaped(title)}</title></circle>`,
      );
      return `<g class="${style}">${path}${marks.join('')}</g>`;
    }),
  ]
    .filter((part) => part !== '')
    .join('\n');
}

/** A straight line. */
export const line = (style: string, x1: number, y1: number, x2: number, y2: number): string =>
  `<line class="${style}" x1="${f(x1)}" x2="${f(x2)}" y1="${f(y1)}" y2="${f(y2)}"/>`;

/** Text at a place; `turned`: by so many degrees. */
export function label(x: number, y: number, anchor: string, text: string, style = 'text', turned = 0): string {
  const turn = turned === 0 ? '' : ` transform="rotate(${f(turned)} ${f(x)} ${f(y)})"`;
  return `<text class="${style}" x="${f(x)}" y="${f(y)}"${turn} text-anchor="${anchor}">${escaped(text)}</text>`;
}
