import { quantType } from '../../src/core/quant-type.js';
import { chartSvg, f, LEFT, label, logScale, RIGHT, type Scale, TOP } from '../chart.js';
import { shapeName } from './cases.js';
import type { KernelBench, KernelRow } from './schema.js';

const BOTTOM = 498;
/** By bits of the weights, light to dark in the light theme; the dark one turns the order. Told apart also by their labels. */
const LIGHT = ['#b58900', '#d1661d', '#c2304e', '#1f5fbf', '#7a3fa6', '#1d8a6b', '#5b6b2a', '#3d4a57'];
const DARK = ['#f0c04a', '#f59a5c', '#f27a92', '#7db2ff', '#c79bf0', '#5fd0ae', '#b3c56b', '#b6c2ce'];
const rules = (colours: readonly string[], page: string, dense: string) =>
  `${colours.map((colour, i) => `.b${i + 1} circle{fill:${colour};stroke:${page}}`).join('')}.dense circle{fill:none;stroke:${dense};stroke-width:1.5}`;

/** A product where its operations a byte and a second are. */
interface Point {
  readonly x: number;
  readonly y: number;
  readonly style: string;
  readonly title: string;
}

/**
 * Arithmetic intensity (2 M N K operations over the bytes a product moves) against achieved operations a second, with the
 * roofs measured in the same run: copy bandwidth, and cuBLAS at a large product.
 */
export function rooflineSvg(bench: KernelBench): string {
  const { rows, settings, machine, copyBytesPerSecond: slope } = bench;
  const packed = rows.map((row): Point => {
    const title = `${row.type} ${shapeName(row)} M=${row.m}: ${row.us.toFixed(1)} µs, ${(100 * row.copyShare).toFixed(0)} % of the copy bandwidth`;
    return pointOf(row, row.bytes, row.us, `b${quantType(row.type).bits}`, title);
  });
  const dense = new Map<string, Point>();
  for (const row of rows) {
    if (row.cublasUs === null) continue;
    const bytes = 2 * (row.n * row.k + row.m * (row.n + row.k));
    const title = `cuBLAS ${shapeName(row)} M=${row.m}: ${row.cublasUs.toFixed(1)} µs`;
    dense.set(`${shapeName(row)} ${row.m}`, pointOf(row, bytes, row.cublasUs, 'dense', title));
  }
  const all = [...dense.values(), ...packed];
  const top = bench.cublasFlops ?? Number.POSITIVE_INFINITY;
  const finite = Number.isFinite(top) ? [top] : [];
  const xs = all.map(({ x }) => x);
  const x = logScale(Math.min(...xs), Math.max(...xs, ...finite.map((flops) => flops / slope)) * 1.6, LEFT, RIGHT);
  const ys = [...all.map(({ y }) => y), ...xs.map((value) => Math.min(top, slope * value))];
  const y = logScale(Math.min(...ys), Math.max(...ys, ...finite) * 1.3, BOTTOM, TOP);
  const bits = [...new Set(rows.map(({ type }) => quantType(type).bits))].sort((a, b) => a - b);
  const styles = [...(dense.size > 0 ? ['dense'] : []), ...bits.map((each) => `b${each}`)];
  return chartSvg({
    title: `Packed products on ${machine.gpu ?? machine.processor}`,
    subtitle: `${settings.dtype} activations, ${settings.group === 'channel' ? 'one scale a row' : `groups of ${settings.group}`}; a point is a shape and M`,
    css: [rules(LIGHT, '#fff', '#5a6672'), rules(DARK, '#12171d', '#9aa7b4')],
    ...{ x, xLabel: 'operations a byte (2MNK over bytes moved)' },
    panels: [
      {
        ...{
          top: TOP,
          bottom: BOTTOM,
          label: 'TFLOP/s',
          y,
          text: (tick) => String(Number((tick / 1e12).toPrecision(3))),
        },
        series: styles.map((style) => ({ style, points: all.filter((point) => point.style === style) })),
        more: roof(bench, x, y),
      },
    ],
    legend: [
      ...bits.map((each) => [`b${each}`, `${each} bit${each === 1 ? '' : 's'}`] as const),
      ...(dense.size > 0 ? [['dense', 'cuBLAS, 16 bits'] as const] : []),
    ],
  });
}

function pointOf({ m, n, k }: KernelRow, bytes: number, us: number, style: string, title: string): Point {
  const operations = 2 * m * n * k;
  return { x: operations / bytes, y: operations / (us * 1e-6), style, title };
}

function roof({ copyBytesPerSecond: slope, cublasFlops }: KernelBench, x: Scale, y: Scale): string {
  const last = x.high;
  // The line ends where it leaves the plot.
  const ridge = Math.min(last, Math.min(cublasFlops ?? Number.POSITIVE_INFINITY, y.high) / slope);
  const lowest = Math.max(x.low, y.low / slope);
  const flat = cublasFlops !== null && ridge < last;
  const corners = [lowest, ridge].map((at) => [at, slope * at] as const);
  if (flat) corners.push([last, cublasFlops]);
  const path = corners.map(([at, value], i) => `${i === 0 ? 'M' : 'L'}${f(x(at))} ${f(y(value))}`).join(' ');
  const middle = Math.sqrt(lowest * ridge);
  const angle = (Math.atan2(y(slope * ridge) - y(slope * lowest), x(ridge) - x(lowest)) * 180) / Math.PI;
  const bandwidth = `${(slope / 1e12).toPrecision(3)} TB/s, the device's copies`;
  const arithmetic = flat
    ? label(x(last), y(cublasFlops) - 8, 'end', `${(cublasFlops / 1e12).toFixed(0)} TFLOP/s, cuBLAS`)
    : '';
  return `<path class="rule" d="${path}"/>${label(x(middle), y(slope * middle) - 8, 'middle', bandwidth, 'text', angle)}${arithmetic}`;
}
