import type { Command } from 'commander';
import type { VerifyReport } from '../verify/report.js';
import { modelDirectory } from './hub.js';
import { integer } from './parse.js';
import { type ComputeOptions, computeOptions, openRuntime, type Run } from './run.js';
import { openQuantizedWith, requireKind } from './sources.js';
import { table } from './table.js';
import { duration } from './units.js';

interface VerifyFlags extends ComputeOptions {
  readonly against?: string;
  readonly seed: number;
  readonly junit?: string;
}

/** `lpq verify ARTIFACT`: proves that the packed bytes hold what was quantized. */
export function verifyCommand(program: Command, run: Run): Command {
  return computeOptions(
    program
      .command('verify')
      .description('prove that a packed directory holds what was quantized')
      .argument('<artifact>', 'directory that lpq pack wrote, or ORG/NAME[@REVISION] of the Hugging Face Hub')
      .option(
        '--against <dir>',
        'quantized checkpoint that it was packed from, of lpq or of another tool, a directory or a name: compares every byte with it',
      )
      .option('--seed <s>', "seed of the emulator's activations", integer('--seed', 0), 0)
      .option('--junit <file>', 'also write the result as JUnit XML, for CI'),
  ).action((dir: string, options: VerifyFlags) => verify(dir, options, run));
}

/** Differences that the terminal lists; --json has all. */
const SHOWN = 20;

async function verify(given: string, options: VerifyFlags, run: Run): Promise<void> {
  const { verificationError } = await import('../verify/report.js');
  const work = () => verified(given, options, run);
  const { junit } = options;
  const report = junit === undefined ? await work() : await (await import('./junit.js')).withJunit(junit, given, work);
  run.report.result(report, printReport(report));
  const error = verificationError(report);
  if (error) throw error;
}

async function verified(given: string, options: VerifyFlags, run: Run): Promise<VerifyReport> {
  const { verifyArtifact } = await import('../verify/verify.js');
  const dir = await modelDirectory(given, run);
  await requireKind(dir, 'lpq-artifact');
  const against = options.against && (await modelDirectory(options.against, run));
  if (against) await requireKind(against, 'lpq-canonical');
  const device = openRuntime(run, options);
  const runtime = device.device === 'cpu' ? device : openRuntime(run, { ...options, device: 'cpu' });
  const { directoryKind } = await import('../../formats/canonical/source.js');
  const foreign = against && directoryKind(against).startsWith('foreign:');
  const opened = foreign ? await openQuantizedWith(against, run) : undefined;
  let task: ReturnType<typeof run.report.task> | undefined;
  const report = await verifyArtifact({
    dir,
    against,
    opened,
    seed: options.seed,
    runtime,
    ...(device !== runtime && { kernel: device }),
    onModule: (module, done, total) => {
      run.interrupt.check();
      task ??= run.report.task('verify', total, false);
      task.update(done, module.name);
    },
  });
  task?.end();
  return report;
}

function printReport(report: VerifyReport): string {
  const rows = report.checks.map(({ name, status, count, failures, detail }) => [
    name,
    status,
    String(count),
    failures > 0 ? String(failures) : '-',
    detail ?? '',
  ]);
  const lines = report.failures.slice(0, SHOWN).map(({ check, message }) => `${check}: ${message}\n`);
  if (report.failures.length > SHOWN) lines.push(`and ${report.failures.length - SHOWN} more\n`);
  return [
    table(['check', 'result', 'compared', 'wrong', ''], rows),
    ...(lines.length > 0 ? ['\n', ...lines] : []),
    ...report.unproved.map((sentence) => `not proved: ${sentence}\n`),
    `\n${report.dir} (${report.target}, ${report.modules.length} modules): ${report.ok ? 'verified' : 'NOT verified'} in ${duration(report.seconds)}\n`,
  ].join('');
}
