import { Command, CommanderError } from 'commander';
import { requireWholeFiles } from '../../native/binding.js';
import type { ExitCode, LpqError } from '../core/error.js';
import { benchCommand } from './bench/command.js';
import { completionCommand } from './completion/command.js';
import { doctorCommand } from './doctor/command.js';
import { evalCommand } from './eval/command.js';
import { explainCommand } from './explain/command.js';
import { generateCommand } from './generate/command.js';
import { inspectCommand } from './inspect/command.js';
import { logitsCommand } from './logits/command.js';
import { mergeCommand } from './merge/command.js';
import { describeTargets, packCommand } from './pack/command.js';
import { pushCommand } from './push/command.js';
import { quantizeCommand } from './quantize/command.js';
import { reportCommand } from './report/command.js';
import { commonOptions, type Run } from './run.js';
import { asLpqError } from './terminal/failure.js';
import { Interrupt } from './terminal/interrupt.js';
import { type Output, Reporter, type ReportOptions } from './terminal/reporter.js';
import { verifyCommand } from './verify/command.js';
import { version } from './version.js';

/** In the order of the work; each declares its arguments and, when called, loads the rooms it needs. */
const COMMANDS = [
  quantizeCommand,
  packCommand,
  mergeCommand,
  pushCommand,
  verifyCommand,
  evalCommand,
  generateCommand,
  reportCommand,
  inspectCommand,
  logitsCommand,
  benchCommand,
  doctorCommand,
  explainCommand,
  completionCommand,
];

/** Commands whose text a reader may leave when it has seen enough (head, a pager): nothing is said of it. */
const LISTINGS = new Set(['explain', 'inspect', 'doctor', 'completion', 'help']);
const TEXTS = new Set(['--help', '-h', '--version', '-V']);

/**
 * Runs the command line `argv` (without node and script) and returns the exit code: 0 only when what it had to say was delivered.
 * Never throws.
 */
export async function main(argv: readonly string[], output: Output = process): Promise<ExitCode> {
  const report = new Reporter(output, reportOptions(argv));
  const code = await command(argv, report);
  const lost = await report.delivered();
  if (!lost) return code;
  const listing = LISTINGS.has(argv[0] ?? '') || argv.some((arg) => TEXTS.has(arg));
  if (code !== lost.exitCode && !(listing && lost.code === 'LPQ_PIPE')) report.error(lost);
  // What the command found itself stays what CI is told.
  return code === 0 ? lost.exitCode : code;
}

async function command(argv: readonly string[], report: Reporter): Promise<ExitCode> {
  const interrupt = new Interrupt((line) => report.warn(line));
  const run: Run = { report, interrupt, exit: 0 };
  // A process that leaves by force gives the terminal its cursor back.
  interrupt.cleanup(() => report.end());
  interrupt.install();
  // Node would print a raw stack, and end with the code of a failed verification.
  const crash = (thrown: unknown) => {
    const error = asLpqError(thrown);
    report.error(error);
    interrupt.leave(error.exitCode);
  };
  process.on('uncaughtException', crash);
  try {
    const program = declareAll(report, run).hook('preAction', (_, action) => report.begin(pathOf(action)));
    if (argv.includes('pack') && argv.some((arg) => ['--help', '-h', 'help'].includes(arg)))
      await describeTargets(program);
    if (argv.length === 0) {
      program.outputHelp({ error: true });
      return 2;
    }
    await program.parseAsync([...argv], { from: 'user' });
    return run.exit;
  } catch (thrown) {
    if (thrown instanceof CommanderError && thrown.exitCode === 0) return 0; // --help, --version
    // What is still queued would keep the process alive.
    interrupt.stopWork();
    const error = blame(thrown);
    report.error(error);
    return error.exitCode;
  } finally {
    report.end();
    interrupt.uninstall();
    process.off('uncaughtException', crash);
  }
}

/** 'bench model' of `lpq bench model`. */
function pathOf(command: Command): string {
  const above = command.parent?.parent ? `${pathOf(command.parent)} ` : '';
  return `${above}${command.name()}`;
}

/** A file that lost bytes is the cause of whatever they were taken for: a difference, NaN, a failed write. */
function blame(thrown: unknown): LpqError {
  try {
    requireWholeFiles();
  } catch (lost) {
    return asLpqError(lost);
  }
  return asLpqError(thrown);
}

/** What bin/lpq.js calls. */
export async function run(argv: readonly string[]): Promise<void> {
  process.exitCode = await main(argv);
}

/** Every command declared but none run, for the manual page and for tests. */
export async function buildProgram(output: Output = process): Promise<Command> {
  const report = new Reporter(output, reportOptions([]));
  const program = declareAll(report, { report, interrupt: new Interrupt(() => {}), exit: 0 });
  await describeTargets(program);
  return program;
}

function declareAll(report: Reporter, run: Run): Command {
  const program = declare(report);
  for (const command of COMMANDS) commonOptions(command(program, run));
  return program;
}

function declare(report: Reporter): Command {
  return new Command('lpq')
    .description('Quantize large language models offline, pack the weights for a target, and prove what was packed.')
    .version(version(), '-V, --version')
    .exitOverride()
    .configureOutput({
      writeOut: (text) => report.help(text, 'stdout'),
      writeErr: (text) => report.help(text, 'stderr'),
      // Errors are thrown; printing them is the reporter's.
      outputError: () => {},
      getOutHelpWidth: () => 100,
      getErrHelpWidth: () => 100,
    });
}

function reportOptions(argv: readonly string[]): ReportOptions {
  const end = argv.indexOf('--');
  const flags = end < 0 ? argv : argv.slice(0, end);
  return { json: flags.includes('--json'), quiet: flags.includes('--quiet'), verbose: flags.includes('--verbose') };
}
