import { Command, CommanderError } from 'commander';
import type { ExitCode } from '../core/error.js';
import { benchCommand } from './bench.js';
import { completionCommand } from './completion.js';
import { doctorCommand } from './doctor.js';
import { evalCommand } from './eval.js';
import { explainCommand } from './explain.js';
import { asLpqError } from './failure.js';
import { generateCommand } from './generate.js';
import { inspectCommand } from './inspect.js';
import { Interrupt } from './interrupt.js';
import { logitsCommand } from './logits.js';
import { mergeCommand } from './merge.js';
import { packCommand } from './pack.js';
import { quantizeCommand } from './quantize.js';
import { reportCommand } from './report.js';
import { type Output, Reporter, type ReportOptions } from './reporter.js';
import { commonOptions, type Run } from './run.js';
import { verifyCommand } from './verify.js';
import { version } from './version.js';

/** In the order of the work; each declares its arguments and, when called, loads the rooms it needs. */
const COMMANDS = [
  quantizeCommand,
  packCommand,
  mergeCommand,
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

/** Runs the command line `argv` (without node and script) and returns the exit code. Never throws. */
export async function main(argv: readonly string[], output: Output = process): Promise<ExitCode> {
  const report = new Reporter(output, reportOptions(argv));
  const interrupt = new Interrupt((line) => report.warn(line));
  const run: Run = { report, interrupt, exit: 0 };
  // A process that leaves by force gives the terminal its cursor back.
  interrupt.cleanup(() => report.end());
  interrupt.install();
  try {
    const program = declareAll(output, run);
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
    const error = asLpqError(thrown);
    report.error(error);
    return error.exitCode;
  } finally {
    report.end();
    interrupt.uninstall();
  }
}

/** What bin/lpq.js calls. */
export async function run(argv: readonly string[]): Promise<void> {
  // A reader that has seen enough (head, less) is no error.
  process.stdout.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code === 'EPIPE') process.exit(0);
    throw error;
  });
  process.exitCode = await main(argv);
}

/** Every command declared but none run, for the manual page and for tests. */
export function buildProgram(output: Output = process): Command {
  const report = new Reporter(output, reportOptions([]));
  return declareAll(output, { report, interrupt: new Interrupt(() => {}), exit: 0 });
}

function declareAll(output: Output, run: Run): Command {
  const program = declare(output);
  for (const command of COMMANDS) commonOptions(command(program, run));
  return program;
}

function declare(output: Output): Command {
  return new Command('lpq')
    .description('Quantize large language models offline, pack the weights for a target, and prove what was packed.')
    .version(version(), '-V, --version')
    .exitOverride()
    .configureOutput({
      writeOut: (text) => output.stdout.write(text),
      writeErr: (text) => output.stderr.write(text),
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
