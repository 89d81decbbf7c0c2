import { shapeName } from './cases.js';
import type { KernelBench, KernelRow } from './schema.js';
import { settingText } from './space.js';

/** The results as Markdown: tables of products, what was sustained, and what tuning found. */
export function kernelMarkdown(bench: KernelBench): string {
  const { machine, settings, rows, tuning } = bench;
  const types = distinct(rows.map(({ type }) => type));
  const group = settings.group === 'channel' ? 'one scale a row' : `groups of ${settings.group}`;
  const where = machine.gpu ?? `${machine.processor}, ${machine.threads} threads`;
  const parts = [
    [
      `${where}; ${settings.dtype} activations, ${group}; copies ${rate(bench.copyBytesPerSecond)}`,
      bench.cublasFlops === null ? '' : `, cuBLAS ${(bench.cublasFlops / 1e12).toFixed(0)} TFLOP/s at 8192³`,
      `; lpq ${bench.lpq}, ${bench.date}.`,
      machine.gpu === null ? '' : ' Weights rotate past L2; median of replays of a CUDA graph.',
    ].join(''),
    cellText(rows),
    // Few types: each has its table. Many: they are compared line by line.
    ...(types.length <= 3
      ? types.map((type) => byShape(type, select(rows, { type })))
      : distinct(rows.map(shapeName)).map((shape) =>
          byType(
            shape,
            rows.filter((row) => shapeName(row) === shape),
          ),
        )),
    ...sustainedTable(rows),
    ...(tuning ? [tuningTable(tuning)] : []),
    ...Object.entries(bench.peers).map(([name, source]) => `${name}: ${source}.`),
  ];
  return `${parts.filter((part) => part !== '').join('\n\n')}\n`;
}

function select(rows: readonly KernelRow[], { type }: { type: string }): KernelRow[] {
  return rows.filter((row) => row.type === type);
}

const distinct = <T>(values: readonly T[]): T[] => [...new Set(values)];
const rate = (perSecond: number): string =>
  perSecond < 1e12 ? `${(perSecond / 1e9).toFixed(1)} GB/s` : `${(perSecond / 1e12).toFixed(2)} TB/s`;

function cellText(rows: readonly KernelRow[]): string {
  const [marlin, cublas] = peersOf(rows);
  return `Each cell: µs (share of the copy bandwidth${marlin ? "; times faster than MARLIN's figure" : ''}${cublas ? '; than cuBLAS in the same run' : ''}).`;
}

function peersOf(rows: readonly KernelRow[]): [marlin: boolean, cublas: boolean] {
  return [rows.some(({ marlinRatio }) => marlinRatio !== null), rows.some(({ cublasRatio }) => cublasRatio !== null)];
}

function cell(row: KernelRow | undefined, [marlin, cublas]: readonly [boolean, boolean]): string {
  if (!row) return '-';
  const ratio = (value: number | null) => (value === null ? '-' : value.toFixed(2));
  return [
    `${micro(row.us)} (${percent(row.copyShare)}`,
    ...(marlin ? [ratio(row.marlinRatio)] : []),
    ...(cublas ? [ratio(row.cublasRatio)] : []),
  ]
    .join('; ')
    .concat(')');
}

const micro = (us: number): string => (us < 100 ? us.toFixed(1) : us.toFixed(0));
const percent = (share: number): string => (share < 0.01 ? '<1 %' : `${(100 * share).toFixed(0)} %`);

function table(head: readonly string[], body: readonly (readonly string[])[]): string {
  return [head, head.map(() => '-'), ...body].map((cells) => `| ${cells.join(' | ')} |`).join('\n');
}

function byShape(type: string, rows: readonly KernelRow[]): string {
  const tokens = distinct(rows.map(({ m }) => m));
  const peers = peersOf(rows);
  const body = distinct(rows.map(shapeName)).map((shape) => [
    shape,
    ...tokens.map((m) =>
      cell(
        rows.find((row) => shapeName(row) === shape && row.m === m),
        peers,
      ),
    ),
  ]);
  const means = tokens.map((m) =>
    meanText(
      rows.filter((row) => row.m === m),
      peers,
    ),
  );
  if (body.length > 1 && means.some((text) => text !== '')) body.push(['geometric mean', ...means]);
  return table([`${type}, K×N`, ...tokens.map((m) => `M=${m}`)], body);
}

function byType(shape: string, rows: readonly KernelRow[]): string {
  const tokens = distinct(rows.map(({ m }) => m));
  const peers = peersOf(rows);
  const body = distinct(rows.map(({ type }) => type)).map((type) => [
    type,
    ...tokens.map((m) =>
      cell(
        rows.find((row) => row.type === type && row.m === m),
        peers,
      ),
    ),
  ]);
  return table([shape, ...tokens.map((m) => `M=${m}`)], body);
}

function meanText(rows: readonly KernelRow[], [marlin, cublas]: readonly [boolean, boolean]): string {
  const mean = (values: readonly (number | null)[]) => geometricMean(values.filter((value) => value !== null));
  return [
    ...(marlin ? [mean(rows.map((row) => row.marlinRatio))] : []),
    ...(cublas ? [mean(rows.map((row) => row.cublasRatio))] : []),
  ]
    .map((value) => (value === null ? '-' : value.toFixed(2)))
    .join('; ');
}

/** null of nothing. */
export function geometricMean(values: readonly number[]): number | null {
  if (values.length === 0) return null;
  return Math.exp(values.reduce((sum, value) => sum + Math.log(value), 0) / values.length);
}

function sustainedTable(rows: readonly KernelRow[]): string[] {
  const ran = rows.filter(({ sustained }) => sustained);
  if (ran.length === 0) return [];
  const range = (sensor: { least: number; most: number } | null) =>
    sensor === null
      ? '-'
      : sensor.least === sensor.most
        ? `${sensor.least}`
        : `${sensor.least.toFixed(0)} to ${sensor.most.toFixed(0)}`;
  const body = ran.map((row) => {
    const s = row.sustained!;
    return [
      `${row.type} ${shapeName(row)} M=${row.m}`,
      s.seconds.toFixed(0),
      `${micro(row.us)}, ${micro(s.us)}`,
      `${percent(row.copyShare)}, ${percent(s.copyShare)}`,
      range(s.smClockMhz),
      range(s.memoryClockMhz),
      range(s.powerWatts),
      range(s.temperatureC),
      s.clockLimits.join(', ') || 'none',
    ];
  });
  const head = [
    'sustained',
    's',
    'µs: peak, sustained',
    'share of copies',
    'SM MHz',
    'memory MHz',
    'W',
    '°C',
    'limits',
  ];
  return [table(head, body)];
}

function tuningTable(tuning: NonNullable<KernelBench['tuning']>): string {
  const { points, configurations, refused, seconds, space } = tuning;
  const outside = points.filter(({ within }) => !within);
  const head = `Tuning: ${configurations} configurations of ${points.length} products (${space} settings each at most, ${refused} refused) in ${seconds.toFixed(0)} s. The library's choice is within 5 % of the best for ${points.length - outside.length} of ${points.length}.`;
  if (outside.length === 0) return head;
  const body = outside.map((p) => [
    `${p.type} ${shapeName(p)} M=${p.m}`,
    micro(p.choiceUs),
    micro(p.bestUs),
    p.ratio.toFixed(2),
    settingText(p.best),
  ]);
  return `${head}\n\n${table(['outside', 'choice µs', 'best µs', 'ratio', 'best setting'], body)}`;
}
