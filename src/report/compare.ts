import type { Report, ReportModule } from '../../formats/report/schema.js';
import { lineChart } from './chart.js';
import { mean, roleOf, seriesOf } from './groups.js';
import { percent } from './html.js';
import { byteCount, escapeText, figure, htmlTable, secondsText, withError } from './markup.js';
import { details, note, page, section } from './page.js';

/** A line of the comparison: both values and what lies between them, as text. */
export interface Difference {
  readonly what: string;
  readonly a: string;
  readonly b: string;
  readonly change: string;
}

/** A module that both runs have. ratio: B's error over A's. */
export interface ModuleDifference {
  readonly name: string;
  readonly a: ReportModule;
  readonly b: ReportModule;
  readonly ratio: number | null;
}

export interface Comparison {
  readonly totals: readonly Difference[];
  /** Settings that differ. */
  readonly options: readonly Difference[];
  /** The largest change of error first. */
  readonly modules: readonly ModuleDifference[];
  readonly onlyA: readonly string[];
  readonly onlyB: readonly string[];
}

export function compareReports(a: Report, b: Report): Comparison {
  const others = new Map(b.modules.map((module) => [module.name, module]));
  const modules = a.modules.flatMap((one): ModuleDifference[] => {
    const other = others.get(one.name);
    if (!other) return [];
    const known = one.relativeError !== null && other.relativeError !== null && one.relativeError > 0;
    return [
      {
        name: one.name,
        a: one,
        b: other,
        ratio: known ? (other.relativeError as number) / (one.relativeError as number) : null,
      },
    ];
  });
  const distance = ({ ratio }: ModuleDifference) => (ratio ? Math.abs(Math.log(ratio)) : -1);
  modules.sort((x, y) => distance(y) - distance(x));
  const names = new Set(a.modules.map(({ name }) => name));
  return {
    totals: totals(a, b),
    options: options(a, b),
    modules,
    onlyA: a.modules.filter(({ name }) => !others.has(name)).map(({ name }) => name),
    onlyB: b.modules.filter(({ name }) => !names.has(name)).map(({ name }) => name),
  };
}

function totals(a: Report, b: Report): Difference[] {
  const of = (
    what: string,
    pick: (report: Report) => number | null,
    words: (value: number | null) => string,
  ): Difference[] => {
    const [one, other] = [pick(a), pick(b)];
    if (one === null && other === null) return [];
    const change = one && other !== null ? `${figure(other / one)} ×` : '–';
    return [{ what, a: words(one), b: words(other), change }];
  };
  const number = (value: number | null) => figure(value, 4);
  return [
    ...of('modules', ({ totals: { modules } }) => modules, number),
    ...of('bits per weight', ({ totals: { bitsPerWeight } }) => bitsPerWeight, number),
    ...of('mean relative error', ({ totals: { relativeError } }) => relativeError, number),
    ...of(
      '4-bit activations',
      ({ totals: { int4Share } }) => int4Share,
      (v) => (v === null ? '–' : percent(v)),
    ),
    ...of('time', ({ totals: { seconds } }) => seconds, secondsText),
    ...of('peak memory', ({ totals: { peakRss } }) => peakRss, byteCount),
    ...evaluations(a, b),
  ];
}

/** Texts that both were evaluated on, with the same windows. */
function evaluations(a: Report, b: Report): Difference[] {
  return a.evaluations.flatMap((one): Difference[] => {
    const other = b.evaluations.find(
      ({ sha256, ctx, prefix, windows }) =>
        sha256 === one.sha256 && ctx === one.ctx && windows === one.windows && `${prefix}` === `${one.prefix}`,
    );
    if (!other) return [];
    const row = (
      what: string,
      x: { value: number; error: number | null },
      y: { value: number; error: number | null },
    ) => {
      // Windows are the same, so that their spread is common to both and the bar of the difference is smaller than this.
      const error = x.error !== null && y.error !== null ? Math.hypot(x.error, y.error) : null;
      return {
        what,
        a: withError(x.value, x.error),
        b: withError(y.value, y.error),
        change: withError(y.value - x.value, error),
      };
    };
    const ppl = ({ perplexity: { ppl, error } }: typeof one) => ({ value: ppl, error });
    const rows = [row(`perplexity on ${one.text}`, ppl(one), ppl(other))];
    if (one.source && other.source) {
      const kl = ({ kl: { mean: value, error } }: NonNullable<typeof one.source>) => ({ value, error });
      rows.push(row(`KL on ${one.text}, nats per token`, kl(one.source), kl(other.source)));
    }
    return rows;
  });
}

function options(a: Report, b: Report): Difference[] {
  const all = (report: Report): Record<string, unknown> => ({
    'version of lpq': report.lpq,
    source: `${report.source.name} ${report.source.fingerprint.slice(0, 12)}`,
    method: report.method,
    calibration: report.calibration
      ? `${report.calibration.name} ${report.calibration.sha256.slice(0, 12)}`
      : undefined,
    ...report.options,
  });
  const [one, other] = [all(a), all(b)];
  const shown = (value: unknown) =>
    value === undefined ? '–' : typeof value === 'string' ? value : JSON.stringify(value);
  return [...new Set([...Object.keys(one), ...Object.keys(other)])]
    .map((what) => ({ what, a: shown(one[what]), b: shown(other[what]), change: '' }))
    .filter((each) => each.a !== each.b);
}

/** Two runs side by side, as one file of HTML. */
export function comparisonPage(a: Report, b: Report): string {
  const found = compareReports(a, b);
  const ratios = new Map(found.modules.map(({ name, ratio }) => [name, ratio]));
  const chart = lineChart({
    title: 'Error of B over error of A',
    xLabel: 'block',
    yLabel: 'ratio',
    log: true,
    rule: 1,
    series: seriesOf(
      a.modules,
      ({ modules }) => mean(modules.map(({ name }) => ratios.get(name))),
      (v) => `${figure(v)} ×`,
    ),
  });
  const better = found.modules.filter(({ ratio }) => ratio !== null && ratio < 1).length;
  const known = found.modules.filter(({ ratio }) => ratio !== null).length;
  return page(`${a.output} and ${b.output} – lpq report`, [
    `<h1>${escapeText(a.output)} (A) and ${escapeText(b.output)} (B)</h1>`,
    section(
      'Totals',
      htmlTable(
        ['total', 'A', 'B', 'change'],
        found.totals.map((row) => [row.what, row.a, row.b, row.change]),
      ),
    ),
    section(
      'Settings that differ',
      found.options.length === 0
        ? note('None: same settings, same version.')
        : htmlTable(
            ['setting', 'A', 'B'],
            found.options.map((row) => [row.what, row.a, row.b]),
          ),
    ),
    section(
      'Error',
      chart,
      known > 0
        ? note(`B is closer to its source in ${better} of ${known} modules.`)
        : note('At least one run has no errors on record.'),
    ),
    section('Modules', moduleTable(found.modules), lone('Only in A', found.onlyA), lone('Only in B', found.onlyB)),
  ]);
}

function moduleTable(modules: readonly ModuleDifference[]): string {
  const head = ['module', 'role', 'scheme A', 'scheme B', 'bits A', 'bits B', 'error A', 'error B', 'B over A'];
  const row = ({ name, a, b, ratio }: ModuleDifference) => [
    name,
    roleOf(a),
    a.scheme,
    b.scheme,
    figure(a.bitsPerWeight, 4),
    figure(b.bitsPerWeight, 4),
    figure(a.relativeError),
    figure(b.relativeError),
    figure(ratio),
  ];
  const shown = modules.slice(0, 1500);
  return details(
    `${modules.length} modules, the largest changes first`,
    modules.length <= 60,
    htmlTable(head, shown.map(row)),
  );
}

function lone(title: string, names: readonly string[]): string {
  if (names.length === 0) return '';
  return details(
    `${title}: ${names.length} modules`,
    false,
    htmlTable(
      ['module'],
      names.slice(0, 1500).map((name) => [name]),
    ),
  );
}
