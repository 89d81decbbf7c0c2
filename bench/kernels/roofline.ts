import { quantType } from '../../src/core/quant-type.js';
import { shapeName } from './cases.js';
import type { KernelBench, KernelRow } from './schema.js';
import { escaped, f, logScale, plain, type Scale } from './svg.js';

const [WIDTH, HEIGHT] = [860, 560];
const AREA = { left: 76, right: 150, top: 56, bottom: 62 } as const;

/** By bits of the weights, light to dark in the light theme; the dark one turns the order. Told apart also by their labels. */
const LIGHT = ['#b58900', '#d1661d', '#c2304e', '#1f5fbf', '#7a3fa6', '#1d8a6b', '#5b6b2a', '#3d4a57'];
const DARK = ['#f0c04a', '#f59a5c', '#f27a92', '#7db2ff', '#c79bf0', '#5fd0ae', '#b3c56b', '#b6c2ce'];

/**
 * Arithmetic intensity (2 M N K operations over the bytes a product moves) against achieved operations a second, with the
 * roofs measured in the same run: copy bandwidth, and cuBLAS at a large product. SVG that stands alone, for light and dark pages.
 */
export function rooflineSvg(bench: KernelBench): string {
  const points = bench.rows.map((row) => place(row));
  const dense = denseRows(bench.rows);
  const slope = bench.copyBytesPerSecond;
  const top = bench.cublasFlops ?? Number.POSITIVE_INFINITY;
  const all = [...points, ...dense];
  const xs = all.map(({ intensity }) => intensity);
  const ridge = Number.isFinite(top) ? [top / slope] : [];
  const x = logScale(Math.min(...xs), Math.max(...xs, ...ridge) * 1.6, AREA.left, WIDTH - AREA.right);
  const ys = all.map(({ flops }) => flops);
  const roofs = xs.map((value) => Math.min(top, slope * value));
  const highest = Math.max(...ys, ...roofs, ...(Number.isFinite(top) ? [top] : []));
  const y = logScale(Math.min(...ys, ...roofs), highest * 1.3, HEIGHT - AREA.bottom, AREA.top);
  const bits = [...new Set(points.map((point) => point.bits))].sort((a, b) => a - b);
  const body = [
    grid(x, y),
    roof(bench, x, y),
    ...dense.map((point) => mark(point, x, y, 'dense')),
    ...points.map((point) => mark(point, x, y, `b${point.bits}`)),
    legend(bits, dense.length > 0),
  ];
  return `${[head(bench), ...body].join('\n')}\n</svg>\n`;
}

interface Point {
  readonly intensity: number;
  readonly flops: number;
  readonly bits: number;
  readonly title: string;
}

function place(row: KernelRow): Point {
  const operations = 2 * row.m * row.n * row.k;
  return {
    intensity: operations / row.bytes,
    flops: operations / (row.us * 1e-6),
    bits: quantType(row.type).bits,
    title: `${row.type} ${shapeName(row)} M=${row.m}: ${row.us.toFixed(1)} µs, ${(100 * row.copyShare).toFixed(0)} % of the copy bandwidth`,
  };
}

function denseRows(rows: readonly KernelRow[]): Point[] {
  const seen = new Map<string, Point>();
  for (const row of rows) {
    if (row.cublasUs === null) continue;
    const operations = 2 * row.m * row.n * row.k;
    seen.set(`${shapeName(row)} ${row.m}`, {
      intensity: operations / (2 * (row.n * row.k + row.m * (row.n + row.k))),
      flops: operations / (row.cublasUs * 1e-6),
      bits: 16,
      title: `cuBLAS ${shapeName(row)} M=${row.m}: ${row.cublasUs.toFixed(1)} µs`,
    });
  }
  return [...seen.values()];
}

function head({ machine, settings }: KernelBench): string {
  const title = `Packed products on ${machine.gpu ?? machine.processor}`;
  const rule = (colours: readonly string[]) => colours.map((colour, i) => `.b${i + 1}{fill:${colour}}`).join('');
  return `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 ${WIDTH} ${HEIGHT}" role="img" aria-label="${escaped(title)}: roofline" font-family="system-ui, sans-serif" font-size="13">
<style>
.page{fill:#fff}.text{fill:#1c2733}.faint{fill:#5a6672}.grid{stroke:#dfe4ea}.roof{stroke:#1c2733;stroke-width:2;fill:none}.dense{fill:none;stroke:#5a6672;stroke-width:1.5}.ring{stroke:#fff;stroke-width:1}${rule(LIGHT)}
@media (prefers-color-scheme: dark){.page{fill:#12171d}.text{fill:#e8edf2}.faint{fill:#9aa7b4}.grid{stroke:#2a333d}.roof{stroke:#e8edf2}.dense{stroke:#9aa7b4}.ring{stroke:#12171d}${rule(DARK)}}
</style>
<rect class="page" width="${WIDTH}" height="${HEIGHT}"/>
<text class="text" x="${AREA.left}" y="26" font-size="16" font-weight="600">${escaped(title)}</text>
<text class="faint" x="${AREA.left}" y="44">${settings.dtype} activations, ${settings.group === 'channel' ? 'one scale a row' : `groups of ${settings.group}`}; a point is a shape and M</text>`;
}

function grid(x: Scale, y: Scale): string {
  const [left, right, bottom, top] = [AREA.left, WIDTH - AREA.right, HEIGHT - AREA.bottom, AREA.top];
  const lines = [
    ...x.ticks.map(
      (tick) =>
        `<line class="grid" x1="${f(x(tick))}" x2="${f(x(tick))}" y1="${top}" y2="${bottom}"/><text class="faint" x="${f(x(tick))}" y="${bottom + 20}" text-anchor="middle">${plain(tick)}</text>`,
    ),
    ...y.ticks.map(
      (tick) =>
        `<line class="grid" x1="${left}" x2="${right}" y1="${f(y(tick))}" y2="${f(y(tick))}"/><text class="faint" x="${left - 8}" y="${f(y(tick) + 4)}" text-anchor="end">${plain(tick / 1e12)}</text>`,
    ),
    `<text class="text" x="${(left + right) / 2}" y="${HEIGHT - 16}" text-anchor="middle">operations a byte (2MNK over bytes moved)</text>`,
    `<text class="text" transform="translate(20 ${(top + bottom) / 2}) rotate(-90)" text-anchor="middle">TFLOP/s</text>`,
  ];
  return lines.join('\n');
}

function roof({ copyBytesPerSecond, cublasFlops }: KernelBench, x: Scale, y: Scale): string {
  const [first, last] = [x.low, x.high];
  const top = cublasFlops ?? Number.POSITIVE_INFINITY;
  // The line ends where it leaves the plot.
  const highest = y.high;
  const ridge = Math.min(last, Math.min(top, highest) / copyBytesPerSecond);
  const lowest = Math.max(first, y.low / copyBytesPerSecond);
  const corners = [lowest, ridge].map((at) => [at, copyBytesPerSecond * at] as const);
  if (cublasFlops !== null && ridge < last) corners.push([last, cublasFlops]);
  const path = corners.map(([at, value], i) => `${i === 0 ? 'M' : 'L'}${f(x(at))} ${f(y(value))}`).join(' ');
  const middle = Math.sqrt(lowest * ridge);
  const angle =
    (Math.atan2(y(copyBytesPerSecond * ridge) - y(copyBytesPerSecond * lowest), x(ridge) - x(lowest)) * 180) / Math.PI;
  const bandwidth = `${(copyBytesPerSecond / 1e12).toPrecision(3)} TB/s, the device's copies`;
  return `<path class="roof" d="${path}"/>
<text class="text" transform="translate(${f(x(middle))} ${f(y(copyBytesPerSecond * middle) - 8)}) rotate(${f(angle)})" text-anchor="middle">${bandwidth}</text>${
    cublasFlops !== null && ridge < last
      ? `\n<text class="text" x="${f(x(last))}" y="${f(y(cublasFlops) - 8)}" text-anchor="end">${(cublasFlops / 1e12).toFixed(0)} TFLOP/s, cuBLAS</text>`
      : ''
  }`;
}

function mark(point: Point, x: Scale, y: Scale, style: string): string {
  const ring = style === 'dense' ? '' : ' ring';
  return `<circle class="${style}${ring}" cx="${f(x(point.intensity))}" cy="${f(y(point.flops))}" r="4.5"><title>${escaped(point.title)}</title></circle>`;
}

function legend(bits: readonly number[], dense: boolean): string {
  const left = WIDTH - AREA.right + 18;
  const entries = [
    ...bits.map((each) => [`b${each}`, `${each} bit${each === 1 ? '' : 's'}`]),
    ...(dense ? [['dense', 'cuBLAS, 16 bits']] : []),
  ];
  return entries
    .map(
      ([style, label], i) =>
        `<circle class="${style}" cx="${left}" cy="${AREA.top + 14 + 22 * i}" r="4.5"/><text class="text" x="${left + 12}" y="${AREA.top + 18 + 22 * i}">${label}</text>`,
    )
    .join('\n');
}
