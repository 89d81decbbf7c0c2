import { chartSvg, LEFT, line, logScale, RIGHT, TOP } from '../chart.js';

/** A product's time beside cuBLAS's and another library's, in microseconds, for `m` tokens. */
export interface SweepPoint {
  readonly m: number;
  readonly us: number;
  readonly cublasUs: number;
  readonly peer?: { readonly name: string; readonly us: number };
}

/** Times above, how many times faster than cuBLAS below. */
const [TIMES, RATIOS] = [
  { top: TOP, bottom: 380 },
  { top: 420, bottom: 580 },
];

/** Times over tokens, both on logarithmic axes, and below them their quotient with a line at 1 and one at `least`. */
export function sweepSvg(title: string, subtitle: string, sweep: readonly SweepPoint[], least: number): string {
  const points = [...sweep].sort((a, b) => a.m - b.m);
  const tokens = points.map(({ m }) => m);
  const x = logScale(Math.min(...tokens), Math.max(...tokens), LEFT, RIGHT);
  const powers = Array.from({ length: 24 }, (_, i) => 2 ** i).filter((m) => m >= x.low && m <= x.high);
  const times = points.flatMap(({ us, cublasUs, peer }) => [us, cublasUs, ...(peer ? [peer.us] : [])]);
  const top = Math.max(1.2, Math.ceil(Math.max(...points.map(({ us, cublasUs }) => cublasUs / us)) * 5) / 5);
  const step = top > 2 ? 0.5 : 0.2;
  const ticks = Array.from({ length: Math.floor(top / step + 1e-9) + 1 }, (_, i) => Number((i * step).toFixed(1)));
  const ratio = (value: number) => RATIOS.bottom - (value / top) * (RATIOS.bottom - RATIOS.top);
  const series = (style: string, of: (point: SweepPoint) => readonly [number, string]) => ({
    ...{ style, joined: true },
    points: points.map((point) => ({ x: point.m, y: of(point)[0], title: of(point)[1] })),
  });
  const peers = points.flatMap(({ m, peer }) =>
    peer ? [{ x: m, y: peer.us, title: `${peer.name} M=${m}: ${peer.us.toFixed(1)} µs` }] : [],
  );
  return chartSvg({
    ...{ title, subtitle, xLabel: 'tokens (M)', xText: String },
    css: [
      '.least{stroke-dasharray:5 4}.ours polyline{stroke:#1f5fbf}.ours circle{fill:#1f5fbf}.cublas polyline{stroke:#d1661d}.cublas circle{fill:#d1661d}.peer polyline{stroke:#7a7a7a}.peer circle{fill:#7a7a7a}',
      '.ours polyline{stroke:#7db2ff}.ours circle{fill:#7db2ff}.cublas polyline{stroke:#f59a5c}.cublas circle{fill:#f59a5c}.peer polyline{stroke:#a8a8a8}.peer circle{fill:#a8a8a8}',
    ],
    x: Object.assign((value: number) => x(value), { low: x.low, high: x.high, ticks: powers }),
    panels: [
      {
        ...{ ...TIMES, label: 'µs', y: logScale(Math.min(...times), Math.max(...times), TIMES.bottom, TIMES.top) },
        series: [
          series('cublas', (p) => [p.cublasUs, `cuBLAS M=${p.m}: ${p.cublasUs.toFixed(1)} µs`]),
          ...(peers.length > 0 ? [{ style: 'peer', joined: true, points: peers }] : []),
          series('ours', (p) => [p.us, `M=${p.m}: ${p.us.toFixed(1)} µs`]),
        ],
      },
      {
        ...{ ...RATIOS, label: 'times faster', text: String, y: Object.assign(ratio, { low: 0, high: top, ticks }) },
        series: [
          series('ours', (p) => [p.cublasUs / p.us, `M=${p.m}: ${(p.cublasUs / p.us).toFixed(2)} times cuBLAS`]),
        ],
        more: [1, least].map((at, i) => line(i ? 'rule least' : 'rule', LEFT, ratio(at), RIGHT, ratio(at))).join(''),
      },
    ],
    legend: [
      ['ours', 'lpq'],
      ['cublas', 'cuBLAS fp16'],
      ...(peers.length > 0 ? ([['peer', 'best other']] as const) : []),
    ],
  });
}
