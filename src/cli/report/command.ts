import { existsSync, statSync } from 'node:fs';
import path from 'node:path';
import type { Command } from 'commander';
import type { Report } from '../../../formats/report/schema.js';
import { LpqError } from '../../core/error.js';
import { counted } from '../../core/words.js';
import type { Run } from '../run.js';
import { table } from '../terminal/table.js';
import { line } from '../terminal/terminal.js';

/** `lpq report A [B]`: a run's report as HTML, or two runs side by side. */
export function reportCommand(program: Command, run: Run): Command {
  return program
    .command('report')
    .description('show what a run did, or compare two runs')
    .argument('<run>', 'directory that lpq quantize wrote, or its .report.json')
    .argument('[other]', 'another run to compare with')
    .option(
      '-o, --output <file>',
      'HTML page to write (default: RUN.report.html; without it a comparison is only printed)',
    )
    .action((a: string, b: string | undefined, options: { output?: string }) => report(a, b, options, run));
}

async function report(a: string, b: string | undefined, options: { output?: string }, run: Run): Promise<void> {
  const { output } = options;
  const { replaceFile, reportPath } = await import('../../report/write.js');
  const first = await openReport(a);
  if (output !== undefined && existsSync(output))
    throw new LpqError('LPQ_OUTPUT_EXISTS', `the output ${output} already exists`, {
      hint: 'Choose another path, or remove it first; lpq never overwrites.',
    });
  if (b === undefined) {
    const { reportPage } = await import('../../report/html.js');
    const target =
      output ?? (a.endsWith('.json') ? `${a.replace(/(\.report)?\.json$/, '')}.report.html` : reportPath(a, 'html'));
    const { refuseForeignReport } = await import('../../report/write.js');
    if (output === undefined) refuseForeignReport(target.replace(/\.report\.html$/, ''));
    await replaceFile(target, reportPage(first));
    const { modules, output: name, ...facts } = first;
    run.report.result(
      { command: 'report', run: name, output: target, ...facts, modules: modules.length },
      summary(first) + line`wrote ${target}\n`,
    );
    return;
  }
  const second = await openReport(b);
  const { compareReports, comparisonPage } = await import('../../report/compare.js');
  if (output !== undefined) await replaceFile(output, comparisonPage(first, second));
  const { totals, options: differing, modules, onlyA, onlyB } = compareReports(first, second);
  const rows = modules.map(({ name, a: one, b: other, ratio }) => ({
    ...{ name, bitsA: one.bitsPerWeight, bitsB: other.bitsPerWeight },
    ...{ errorA: one.relativeError, errorB: other.relativeError, ratio },
  }));
  const part = (title: string, head: string[], lines: string[][]) =>
    lines.length > 0 ? `${title}\n${table(head, lines)}\n` : '';
  run.report.result(
    {
      command: 'report',
      totals,
      options: differing,
      modules: rows,
      onlyA,
      onlyB,
      ...(output !== undefined && { output }),
    },
    [
      part(
        'totals',
        ['', 'A', 'B', 'change'],
        totals.map((row) => [row.what, row.a, row.b, row.change]),
      ),
      part(
        'settings that differ',
        ['', 'A', 'B'],
        differing.map((row) => [row.what, row.a, row.b]),
      ),
      part(
        'largest changes of error',
        ['module', 'A', 'B', 'B over A'],
        modules
          .flatMap(({ name, a: one, b: other, ratio }) =>
            ratio === null
              ? []
              : [
                  [
                    name,
                    one.relativeError?.toPrecision(3) ?? '-',
                    other.relativeError?.toPrecision(3) ?? '-',
                    ratio.toPrecision(3),
                  ],
                ],
          )
          .slice(0, 10),
      ),
      output === undefined ? '' : line`wrote ${output}\n`,
    ].join(''),
  );
}

/** A report file, the report beside a directory, or what the directory itself tells. Throws LPQ_FILE, LPQ_REPORT, LPQ_CANONICAL. */
export async function openReport(place: string): Promise<Report> {
  const { readReport } = await import('../../../formats/report/read.js');
  const { storedReport } = await import('../../report/write.js');
  if (!existsSync(place))
    throw new LpqError('LPQ_FILE', `${place} does not exist`, { hint: 'Give the output of lpq quantize.' });
  if (!statSync(place).isDirectory()) return readReport(place);
  const { readManifest } = await import('../../../formats/canonical/read.js');
  const { canonicalSchema } = await import('../../../formats/canonical/schema.js');
  const { requireKind } = await import('../options/sources.js');
  await requireKind(place, 'lpq-canonical');
  if (!existsSync(path.join(place, 'lpq.json')))
    throw new LpqError('LPQ_CANONICAL', `${place} was quantized by another tool, which left no record`, {
      hint: 'Give the output of lpq quantize.',
    });
  const manifest = readManifest(place, canonicalSchema, 'LPQ_CANONICAL');
  const stored = storedReport(place);
  // One that an earlier run of another request left here tells nothing of this directory.
  const same = (report: Report) =>
    report.source.fingerprint === manifest.provenance.source.fingerprint &&
    JSON.stringify(report.options) === JSON.stringify(manifest.provenance.options) &&
    report.modules.length === Object.keys(manifest.modules).length;
  if (stored && same(stored)) return stored;
  return (await import('../../report/build.js')).buildReport(place, manifest);
}

function summary({ output, method, totals, evaluations }: Report): string {
  const { modules, bitsPerWeight, relativeError, seconds } = totals;
  const error = relativeError === null ? '' : `, mean relative error ${relativeError.toPrecision(3)}`;
  const time = seconds === null ? '' : `, ${seconds.toFixed(1)} s`;
  const quality = evaluations.map(({ text, perplexity, source }) => {
    const kl = source ? `, KL ${source.kl.mean.toPrecision(3)} nats per token` : '';
    return line`perplexity ${perplexity.ppl.toFixed(4)} on ${text}${kl}\n`;
  });
  const first = line`${output}: ${method}, ${counted(modules, 'module')}, ${bitsPerWeight.toFixed(3)} bits per weight${error}${time}\n`;
  return [first, ...quality].join('');
}
