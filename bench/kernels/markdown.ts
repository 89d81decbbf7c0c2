import { figure, markdownTable, micro, page, percent, placeOf, rate, sources } from '../markdown.js';
import { shapeName } from './cases.js';
import type { KernelBench, KernelRow } from './schema.js';
import { settingText } from './space.js';

/** The results as Markdown: tables of products, what was sustained, and what tuning found. */
export function kernelMarkdown(bench: KernelBench): string {
  const { machine, settings, rows, tuning } = bench;
  const types = distinct(rows.map(({ type }) => type));
  const group = settings.group === 'channel' ? 'one scale a row' : `groups of ${settings.group}`;
  return page([
    [
      `${placeOf(machine)}; ${settings.dtype} activations, ${group}; copies ${rate(bench.copyBytesPerSecond)}`,
      bench.cublasFlops === null ? '' : `, cuBLAS ${(bench.cublasFlops / 1e12).toFixed(0)} TFLOP/s at 8192³`,
      `; lpq ${bench.lpq}, ${bench.date}.`,
      machine.gpu === null ? '' : ' Weights rotate past L2; median of replays of a CUDA graph.',
    ].join(''),
    cellText(rows),
    // Few types: each has its table. Many: they are compared line by line.
    ...(types.length <= 3
      ? types.map((type) =>
          crossTable(
            `${type}, K×N`,
            rows.filter((row) => row.type === type),
            shapeName,
            true,
          ),
        )
      : distinct(rows.map(shapeName)).map((shape) =>
          crossTable(
            shape,
            rows.filter((row) => shapeName(row) === shape),
            ({ type }) => type,
            false,
          ),
        )),
    sustainedTable(rows),
    tuning ? tuningTable(tuning) : '',
    ...sources(bench.peers),
  ]);
}

const distinct = <T>(values: readonly T[]): T[] => [...new Set(values)];

function cellText(rows: readonly KernelRow[]): string {
  const [marlin, cublas] = peersOf(rows);
  return `Each cell: µs (share of the copy bandwidth${marlin ? "; times faster than MARLIN's figure" : ''}${cublas ? '; than cuBLAS in the same run' : ''}).`;
}

type Peers = readonly [marlin: boolean, cublas: boolean];

function peersOf(rows: readonly KernelRow[]): Peers {
  return [rows.some(({ marlinRatio }) => marlinRatio !== null), rows.some(({ cublasRatio }) => cublasRatio !== null)];
}

/** What is said of both peers, of those that there are. */
const ofPeers = ([marlin, cublas]: Peers, of: (key: 'marlinRatio' | 'cublasRatio') => number | null): string[] => [
  ...(marlin ? [figure(of('marlinRatio'))] : []),
  ...(cublas ? [figure(of('cublasRatio'))] : []),
];

/** A row for each `key`, a column for each number of tokens; `means`: and the geometric means of several rows. */
function crossTable(
  title: string,
  rows: readonly KernelRow[],
  key: (row: KernelRow) => string,
  means: boolean,
): string {
  const tokens = distinct(rows.map(({ m }) => m));
  const peers = peersOf(rows);
  const cell = (row: KernelRow | undefined): string =>
    row
      ? `${[`${micro(row.us)} (${percent(row.copyShare)}`, ...ofPeers(peers, (ratio) => row[ratio])].join('; ')})`
      : '-';
  const body = distinct(rows.map(key)).map((name) => [
    name,
    ...tokens.map((m) => cell(rows.find((row) => key(row) === name && row.m === m))),
  ]);
  const mean = (m: number): string => {
    const own = rows.filter((row) => row.m === m);
    return ofPeers(peers, (ratio) => geometricMean(own.map((row) => row[ratio]))).join('; ');
  };
  if (means && body.length > 1 && peers.includes(true)) body.push(['geometric mean', ...tokens.map(mean)]);
  return markdownTable([title, ...tokens.map((m) => `M=${m}`)], body);
}

/** Of what is known; null of nothing. */
export function geometricMean(values: readonly (number | null)[]): number | null {
  const known = values.filter((value) => value !== null);
  if (known.length === 0) return null;
  return Math.exp(known.reduce((sum, value) => sum + Math.log(value), 0) / known.length);
}

function sustainedTable(rows: readonly KernelRow[]): string {
  const range = (sensor: { least: number; most: number } | null) =>
    sensor === null
      ? '-'
      : sensor.least === sensor.most
        ? `${sensor.least}`
        : `${sensor.least.toFixed(0)} to ${sensor.most.toFixed(0)}`;
  const body = rows.flatMap(({ sustained: s, ...row }) =>
    s === undefined
      ? []
      : [
          [
            ...[`${row.type} ${shapeName(row)} M=${row.m}`, s.seconds.toFixed(0), `${micro(row.us)}, ${micro(s.us)}`],
            `${percent(row.copyShare)}, ${percent(s.copyShare)}`,
            ...[s.smClockMhz, s.memoryClockMhz, s.powerWatts, s.temperatureC].map(range),
            s.clockLimits.join(', ') || 'none',
          ],
        ],
  );
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
  return body.length === 0 ? '' : markdownTable(head, body);
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
  return `${head}\n\n${markdownTable(['outside', 'choice µs', 'best µs', 'ratio', 'best setting'], body)}`;
}
