import { escaped, f, logScale, plain, type Scale } from './svg.js';

/** A product's time beside cuBLAS's, both in microseconds, for `m` tokens. */
export interface SweepPoint {
  readonly m: number;
  readonly us: number;
  readonly cublasUs: number;
}

const [WIDTH, HEIGHT] = [860, 640];
const [LEFT, RIGHT] = [76, 850 - 130];
/** Times above, how many times faster than cuBLAS below. */
const TIMES = { top: 56, bottom: 380 } as const;
const RATIO = { top: 420, bottom: 580 } as const;

/**
 * Times over tokens, both on logarithmic axes, and below them their quotient with a line at 1 and one at `least`. SVG that stands alone, for
 * light and dark pages.
 */
export function sweepSvg(title: string, subtitle: string, sweep: readonly SweepPoint[], least: number): string {
  const points = [...sweep].sort((a, b) => a.m - b.m);
  const times = points.flatMap(({ us, cublasUs }) => [us, cublasUs]);
  const x = logScale(Math.min(...points.map(({ m }) => m)), Math.max(...points.map(({ m }) => m)), LEFT, RIGHT);
  const y = logScale(Math.min(...times), Math.max(...times), TIMES.bottom, TIMES.top);
  const ratios = points.map(({ us, cublasUs }) => cublasUs / us);
  const top = Math.max(1.2, Math.ceil(Math.max(...ratios) * 5) / 5);
  const z = (value: number): number => RATIO.bottom - (value / top) * (RATIO.bottom - RATIO.top);
  const steps = top > 2 ? [0, 0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4] : [0, 0.2, 0.4, 0.6, 0.8, 1, 1.2, 1.4, 1.6, 1.8, 2];
  return `${[
    head(title, subtitle),
    ...powersOfTwo(x).map((m) => vertical(x(m), m)),
    ...y.ticks.map((tick) => horizontal(y(tick), plain(tick))),
    ...steps.filter((each) => each <= top).map((each) => horizontal(z(each), String(each))),
    `<line class="bar" x1="${LEFT}" x2="${RIGHT}" y1="${f(z(1))}" y2="${f(z(1))}"/>`,
    `<line class="bar least" x1="${LEFT}" x2="${RIGHT}" y1="${f(z(least))}" y2="${f(z(least))}"/>`,
    label('µs', (TIMES.top + TIMES.bottom) / 2),
    label('times faster', (RATIO.top + RATIO.bottom) / 2),
    `<text class="text" x="${(LEFT + RIGHT) / 2}" y="${HEIGHT - 14}" text-anchor="middle">tokens (M)</text>`,
    line('cublas', points, x, (p) => [y(p.cublasUs), `cuBLAS M=${p.m}: ${p.cublasUs.toFixed(1)} µs`]),
    line('ours', points, x, (p) => [y(p.us), `M=${p.m}: ${p.us.toFixed(1)} µs`]),
    line('ours', points, x, (p) => [z(p.cublasUs / p.us), `M=${p.m}: ${(p.cublasUs / p.us).toFixed(2)} times cuBLAS`]),
    legend(),
  ].join('\n')}\n</svg>\n`;
}

function powersOfTwo(x: Scale): number[] {
  return Array.from({ length: 24 }, (_, i) => 2 ** i).filter((m) => m >= x.low && m <= x.high);
}

const vertical = (at: number, m: number): string =>
  `<line class="grid" x1="${f(at)}" x2="${f(at)}" y1="${TIMES.top}" y2="${TIMES.bottom}"/><line class="grid" x1="${f(at)}" x2="${f(at)}" y1="${RATIO.top}" y2="${RATIO.bottom}"/><text class="faint" x="${f(at)}" y="${RATIO.bottom + 18}" text-anchor="middle">${m}</text>`;

const horizontal = (at: number, text: string): string =>
  `<line class="grid" x1="${LEFT}" x2="${RIGHT}" y1="${f(at)}" y2="${f(at)}"/><text class="faint" x="${LEFT - 8}" y="${f(at + 4)}" text-anchor="end">${text}</text>`;

const label = (text: string, middle: number): string =>
  `<text class="text" transform="translate(20 ${middle}) rotate(-90)" text-anchor="middle">${text}</text>`;

function line(
  style: string,
  points: readonly SweepPoint[],
  x: Scale,
  of: (point: SweepPoint) => [number, string],
): string {
  const place = points.map((point) => [x(point.m), ...of(point)] as const);
  const path = place.map(([at, value]) => `${f(at)},${f(value)}`).join(' ');
  const marks = place.map(
    ([at, value, title]) => `<circle cx="${f(at)}" cy="${f(value)}" r="3"><title>${escaped(title)}</title></circle>`,
  );
  return `<g class="${style}"><polyline points="${path}"/>${marks.join('')}</g>`;
}

function legend(): string {
  const entry = (style: string, text: string, i: number): string =>
    `<g class="${style}"><circle cx="${RIGHT + 18}" cy="${TIMES.top + 14 + 22 * i}" r="4.5"/></g><text class="text" x="${RIGHT + 30}" y="${TIMES.top + 18 + 22 * i}">${text}</text>`;
  return [entry('ours', 'lpq', 0), entry('cublas', 'cuBLAS fp16', 1)].join('\n');
}

function head(title: string, subtitle: string): string {
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${escaped(title)}" font-family="system-ui, sans-serif" font-size="13">
<style>
.page{fill:#fff}.text{fill:#1c2733}.faint{fill:#5a6672}.grid{stroke:#dfe4ea}.bar{stroke:#1c2733;stroke-width:1.5}.least{stroke-dasharray:5 4}polyline{fill:none;stroke-width:2}.ours polyline{stroke:#1f5fbf}.ours circle{fill:#1f5fbf}.cublas polyline{stroke:#d1661d}.cublas circle{fill:#d1661d}
@media (prefers-color-scheme: dark){.page{fill:#12171d}.text{fill:#e8edf2}.faint{fill:#9aa7b4}.grid{stroke:#2a333d}.bar{stroke:#e8edf2}.ours polyline{stroke:#7db2ff}.ours circle{fill:#7db2ff}.cublas polyline{stroke:#f59a5c}.cublas circle{fill:#f59a5c}}
</style>
<rect class="page" width="${WIDTH}" height="${HEIGHT}"/>
<text class="text" x="${LEFT}" y="26" font-size="16" font-weight="600">${escaped(title)}</text>
<text class="faint" x="${LEFT}" y="44">${escaped(subtitle)}</text>`;
}
