import { Command, CommanderError } from 'commander';
import { requireWholeFiles } from '../../native/binding.js';
import type { ExitCode, LpqError } from '../core/error.js';
import { arrangeHelp, optionDescription } from './help.js';
import { commonOptions, type Run } from './run.js';
import { asLpqError } from './terminal/failure.js';
import { Interrupt } from './terminal/interrupt.js';
import { type Output, Reporter, type ReportOptions } from './terminal/reporter.js';
import { version } from './version.js';

type Declare = (program: Command, run: Run) => Command;

/** In the order of the work; loaded when it is chosen or listed. Each declares its arguments and, when called, loads the rooms it needs. */
const COMMANDS: Readonly<Record<string, () => Promise<Declare>>> = {
  init: async () => (await import('./init/command.js')).initCommand,
  quantize: async () => (await import('./quantize/command.js')).quantizeCommand,
  pack: async () => (await import('./pack/command.js')).packCommand,
  merge: async () => (await import('./merge/command.js')).mergeCommand,
  push: async () => (await import('./push/command.js')).pushCommand,
  verify: async () => (await import('./verify/command.js')).verifyCommand,
  eval: async () => (await import('./eval/command.js')).evalCommand,
  compare: async () => (await import('./compare/command.js')).compareCommand,
  generate: async () => (await import('./generate/command.js')).generateCommand,
  report: async () => (await import('./report/command.js')).reportCommand,
  inspect: async () => (await import('./inspect/command.js')).inspectCommand,
  logits: async () => (await import('./logits/command.js')).logitsCommand,
  bench: async () => (await import('./bench/command.js')).benchCommand,
  tilus: async () => (await import('./tilus/command.js')).tilusCommand,
  doctor: async () => (await import('./doctor/command.js')).doctorCommand,
  explain: async () => (await import('./explain/command.js')).explainCommand,
  completion: async () => (await import('./completion/command.js')).completionCommand,
};

/** Commands whose text a reader may leave when it has seen enough (head, a pager): nothing is said of it. */
const LISTINGS = new Set(['explain', 'inspect', 'doctor', 'completion', 'tilus', 'help']);
const VERSION = ['--version', '-V'];
const HELP = ['--help', '-h'];
const TEXTS = new Set([...VERSION, ...HELP]);

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
    const program = await declareChosen(argv, report, run);
    program.hook('preAction', (_, action) => report.begin(pathOf(action)));
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
  const program = declare(report);
  await declareCommands(Object.keys(COMMANDS), program, { report, interrupt: new Interrupt(() => {}), exit: 0 });
  await (await import('./pack/command.js')).describeTargets(program);
  return program;
}

/** What `argv` chooses is declared alone, so that nothing else is loaded; all commands, where they are listed or a word resembles one. */
async function declareChosen(argv: readonly string[], report: Reporter, run: Run): Promise<Command> {
  const program = declare(report);
  const [first = ''] = argv;
  if (VERSION.includes(first)) return program;
  const alone = Object.hasOwn(COMMANDS, first) && first !== 'completion';
  await declareCommands(alone ? [first] : Object.keys(COMMANDS), program, run);
  if (argv.includes('pack') && ['help', ...HELP].some((word) => argv.includes(word)))
    await (await import('./pack/command.js')).describeTargets(program);
  return program;
}

async function declareCommands(names: readonly string[], program: Command, run: Run): Promise<void> {
  const loaded = await Promise.all(names.map((name) => COMMANDS[name]?.()));
  for (const command of loaded) if (command) commonOptions(command(program, run));
  arrangeHelp(program);
}

function declare(report: Reporter): Command {
  return new Command('lpq')
    .description('Quantize large language models offline, pack the weights for an engine, and prove the packed bytes.')
    .version(version(), '-V, --version')
    .exitOverride()
    .configureHelp({ optionDescription })
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
