import type { Report, ReportModule } from '../../formats/report/schema.js';
import { barChart, heatMap, lineChart } from './chart.js';
import { expertTokens, groupsOf, mean, seriesOf } from './groups.js';
import { judged, settings } from './judged.js';
import { byteCount, countText, escapeText, figure, htmlTable, knownColumns, secondsText, withError } from './markup.js';
import { cards, details, note, page, section } from './page.js';
import { training } from './training.js';

/** Rows beyond which the table of modules shows blocks and roles instead: experts make tens of thousands. */
const MOST_ROWS = 1500;

/** A report as one file of HTML: charts as SVG, no script, nothing fetched. */
export function reportPage(report: Report): string {
  const { output, source, method, totals, lpq } = report;
  const revision = source.revision === null ? '' : ` at ${source.revision}`;
  return page(`${output} – lpq report`, [
    `<h1>${escapeText(output)}</h1>`,
    note(`${method} of ${source.name}${revision}, by lpq ${lpq}`),
    cards([
      ['modules quantized', String(totals.modules)],
      ['bits per weight', figure(totals.bitsPerWeight, 4)],
      ['mean relative error', figure(totals.relativeError)],
      ...(totals.int4Share === null ? [] : [['4-bit activations', percent(totals.int4Share)] as const]),
      ['time', secondsText(totals.seconds)],
      ['peak memory', byteCount(totals.peakRss)],
    ]),
    judged(report),
    quality(report),
    settings(report),
    errors(report),
    training(report),
    bits(report),
    ranges(report),
    experts(report),
    activations(report),
    time(report),
    modules(report),
  ]);
}

function quality({ evaluations }: Report): string {
  if (evaluations.length === 0) return '';
  const rows = evaluations.map(({ text, ctx, prefix, windows, tokens, perplexity, source }) => [
    text,
    `${windows} × ${ctx}${prefix.length > 0 ? `, behind token ${prefix.join(' ')}` : ''}`,
    countText(tokens),
    withError(perplexity.ppl, perplexity.error),
    source ? withError(source.perplexity.ppl, source.perplexity.error) : '–',
    source ? withError(source.kl.mean, source.kl.error) : '–',
    source ? withError(100 * source.sameTop.mean, times(source.sameTop.error, 100)) : '–',
  ]);
  const head = ['text', 'windows', 'tokens', 'perplexity', 'of the source', 'KL, nats per token', 'same top token, %'];
  return section(
    'Quality',
    knownColumns(head, rows),
    note('Errors are standard errors over windows. KL is KL(source ‖ quantized), a mean over tokens.'),
  );
}

function errors({ modules: all }: Report): string {
  const chart = lineChart({
    title: 'Relative squared error of the output',
    xLabel: 'block',
    yLabel: 'error',
    log: true,
    series: seriesOf(all, ({ modules }) => mean(modules.map(({ relativeError }) => relativeError)), figure),
  });
  const raised = all.filter(({ measures }) => (measures.dampAttempts ?? 1) > 1);
  const retries =
    raised.length === 0
      ? ''
      : details(
          `${raised.length} modules with raised damping, so that the Hessian could be factored`,
          false,
          htmlTable(
            ['module', 'attempts', 'damping'],
            raised.map(({ name, damp, measures }) => [name, String(measures.dampAttempts), figure(damp)]),
          ),
        );
  if (chart === '') return section('Error', note('There are no statistics: rounding to nearest reads only weights.'));
  return section(
    'Error',
    chart,
    note(
      'How much quantizing changed the output of a module on the calibration text: 0.01 means that the squared error is one hundredth of the squared output. As a formula: tr(D H Dᵀ) / tr(W H Wᵀ), with D the change of the weights W, and H the second moments of the inputs.',
    ),
    raised.length === 0 && all.some(({ damp }) => damp !== null)
      ? note('No module needed more damping than requested.')
      : retries,
  );
}

function bits({ modules: all }: Report): string {
  const schemes = new Map<string, { weights: number; bits: number; modules: number }>();
  for (const { scheme, shape, bitsPerWeight } of all) {
    const sum = schemes.get(scheme) ?? { weights: 0, bits: 0, modules: 0 };
    const weights = shape[0] * shape[1];
    schemes.set(scheme, {
      weights: sum.weights + weights,
      bits: sum.bits + weights * bitsPerWeight,
      modules: sum.modules + 1,
    });
  }
  const widths = all.map(({ bitsPerWeight }) => bitsPerWeight);
  // A scale of a whole tensor adds less than a thousandth of a bit: no difference that a chart should show.
  const same = widths.every((bits) => Math.abs(bits - (widths[0] as number)) < 0.01);
  return section(
    'Bits',
    htmlTable(
      ['scheme', 'modules', 'weights', 'bits per weight', 'bytes'],
      [...schemes].map(([scheme, sum]) => [
        scheme,
        String(sum.modules),
        sum.weights.toLocaleString('en'),
        figure(sum.bits / sum.weights, 4),
        byteCount(sum.bits / 8),
      ]),
    ),
    same
      ? ''
      : lineChart({
          title: 'Bits a weight',
          xLabel: 'block',
          yLabel: 'bits',
          series: seriesOf(all, ({ modules }) => mean(modules.map(({ bitsPerWeight }) => bitsPerWeight)), figure),
        }),
  );
}

function ranges({ modules: all }: Report): string {
  const worst = (pick: (range: { above: number; below: number }) => number) => (modules: readonly ReportModule[]) =>
    modules.reduce<number | null>((least, { measures: { range } }) => {
      const value = range && pick(range);
      return value === undefined ? least : Math.min(least ?? value, value);
    }, null);
  const blocks = [...new Set(all.flatMap(({ block }) => (block === null ? [] : [block])))];
  const of = (label: string, least: (modules: readonly ReportModule[]) => number | null) => ({
    label,
    points: blocks.flatMap((x) => {
      const y = least(all.filter(({ block }) => block === x));
      return y === null ? [] : [{ x, y, title: `block ${x}: ${figure(y)} ${label}` }];
    }),
  });
  const headroom = lineChart({
    title: 'Range left in fp16, for the worst module of each block',
    xLabel: 'block',
    yLabel: 'powers of two',
    rule: 0,
    series: [
      of(
        'above the largest weight',
        worst(({ above }) => above),
      ),
      of(
        'below the smallest scale',
        worst(({ below }) => below),
      ),
    ],
  });
  const histogram = new Array<number>(8).fill(0);
  for (const { measures } of all)
    for (const [i, count] of (measures.clip?.histogram ?? []).entries())
      histogram[i] = (histogram[i] as number) + count;
  const total = histogram.reduce((a, b) => a + b, 0);
  const names = [
    'below 0.5',
    '0.5 to 0.6',
    '0.6 to 0.7',
    '0.7 to 0.8',
    '0.8 to 0.9',
    '0.9 to 1.0',
    '1.0 to 1.1',
    'above',
  ];
  const clip =
    total === 0
      ? ''
      : barChart(
          'Scales divided by those of the full range',
          histogram.map((count, i) => ({ label: names[i] as string, value: count, text: percent(count / total) })),
        ) +
        note(`Of ${total.toLocaleString('en')} sampled groups; below 1 the largest weights of a group are clipped.`);
  return section(
    'Range and clipping',
    headroom,
    headroom === '' ? '' : note('Below 0, fp16 kernels overflow (above) or lose bits of a scale (below).'),
    clip,
  );
}

function experts(report: Report): string {
  const rows = expertTokens(report);
  if (rows.length === 0) return '';
  const all = rows.flatMap(({ values }) => values.filter((value): value is number => value !== null));
  const unseen = all.filter((tokens) => tokens === 0).length;
  return section(
    'Experts',
    heatMap('Calibration tokens of each expert', rows, 'expert'),
    note(
      `${countText(all.length)} experts; from ${Math.min(...all).toLocaleString('en')} to ${Math.max(...all).toLocaleString('en')} tokens${unseen > 0 ? `; ${unseen} saw none: rounded to nearest` : ''}.`,
    ),
  );
}

function activations({ modules: all, totals }: Report): string {
  if (totals.int4Share === null) return '';
  return section(
    'Activations',
    note(`${percent(totals.int4Share)} of the multiplications read activations of 4 bits, the others of 8.`),
    lineChart({
      title: 'Share of blocks of channels with 4 bits',
      xLabel: 'block',
      yLabel: 'share',
      series: seriesOf(all, ({ modules }) => mean(modules.map(({ int4Share }) => int4Share)), percent),
    }),
  );
}

function time({ stages, waits, machine, totals }: Report): string {
  if (stages.length === 0) return '';
  const where = machine
    ? note(
        `${machine.cpu}, ${machine.cores} cores, ${byteCount(machine.memory)} of memory; computed on ${machine.device}.`,
      )
    : '';
  return section(
    'Time and memory',
    barChart(
      'Time by stage',
      stages.map(({ name, seconds }) => ({
        label: name,
        value: seconds,
        text: `${secondsText(seconds)} (${percent(seconds / Math.max(totals.seconds ?? 0, 1e-9))})`,
      })),
    ),
    knownColumns(
      ['stage', 'time', 'memory', 'device memory'],
      stages.map(({ name, seconds, rss, device }) => [name, secondsText(seconds), byteCount(rss), byteCount(device)]),
    ),
    waits ? note(`Waited ${secondsText(waits.read)} for reading and ${secondsText(waits.write)} for writing.`) : '',
    where,
  );
}

function modules({ modules: all }: Report): string {
  const head = ['module', 'scheme', 'bits', 'error', 'damping', 'clip', 'fp16 above', 'fp16 below', 'tokens', 'time'];
  const row = (name: string, list: readonly ReportModule[]) => [
    name,
    [...new Set(list.map(({ scheme }) => scheme))].join(', '),
    figure(mean(list.map(({ bitsPerWeight }) => bitsPerWeight)), 4),
    figure(mean(list.map(({ relativeError }) => relativeError))),
    figure(mean(list.map(({ damp }) => damp))),
    figure(mean(list.map(({ measures }) => measures.clip?.mean))),
    figure(mean(list.map(({ measures }) => measures.range?.above))),
    figure(mean(list.map(({ measures }) => measures.range?.below))),
    countText(mean(list.map(({ tokens }) => tokens))),
    secondsText(
      list.every(({ seconds }) => seconds === null) ? null : list.reduce((sum, m) => sum + (m.seconds ?? 0), 0),
    ),
  ];
  const few = all.length <= MOST_ROWS;
  const rows = few
    ? all.map((module) => row(module.name, [module]))
    : groupsOf(all).map((group) =>
        row(`block ${group.block ?? '–'} ${group.role} (${group.modules.length})`, group.modules),
      );
  const notes = all.filter((module) => module.note !== null);
  return section(
    'Modules',
    details(
      few ? `All ${all.length} modules` : `${all.length} modules by block and role`,
      all.length <= 60,
      knownColumns(head, rows),
    ),
    notes.length === 0
      ? ''
      : details(
          `${notes.length} notes`,
          notes.length <= 20,
          htmlTable(
            ['module', 'note'],
            notes.slice(0, MOST_ROWS).map((module) => [module.name, module.note as string]),
          ),
        ),
  );
}

export const percent = (share: number) => `${figure(100 * share)} %`;
const times = (value: number | null, factor: number) => (value === null ? null : value * factor);
