import { existsSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { setImmediate } from 'node:timers/promises';
import type { Command } from 'commander';
import { writeError } from '../../../formats/directory/write-error.js';
import { tell } from '../../core/activity.js';
import { LpqError } from '../../core/error.js';
import type { LaunchArguments } from '../../tilus/interpret/run.js';
import { collect } from '../options/parse.js';
import type { Run } from '../run.js';
import { openDevice } from './device.js';
import { knownArch, openProgram, type ProgramFlags, programOptions } from './program.js';

/** How long blocks run before signals are heard. */
const TURN_MS = 50;

interface RunFlags extends ProgramFlags {
  readonly in?: readonly string[];
  readonly out?: readonly string[];
  readonly device: string;
}

/** `lpq tilus run`. */
export function tilusRunCommand(tilus: Command, run: Run): Command {
  return programOptions(
    tilus
      .command('run')
      .description(
        'run a program exactly on the CPU and report races and reads of unwritten memory; or on a CUDA device',
      ),
  )
    .option('--in <name=value>', 'a parameter: a number, or a file of its bytes; may be repeated', collect)
    .option(
      '--out <name=file:bytes>',
      'an output parameter: its file and its number of bytes; may be repeated',
      collect,
    )
    .option('--device <device>', 'cpu: the interpreter; cuda or cuda:N: compiled with nvcc', 'cpu')
    .action((name: string, flags: RunFlags) => runProgram(name, flags, run));
}

async function runProgram(name: string, flags: RunFlags, run: Run): Promise<void> {
  const args: Record<string, LaunchArguments[string]> = {};
  for (const each of flags.in ?? []) {
    const [parameter, value] = halves('--in', each, 'NAME=NUMBER or NAME=FILE');
    args[parameter] = /^-?\d+$/.test(value) ? Number(value) : bytesOf(value);
  }
  const outputs = (flags.out ?? []).map((each) => {
    const [parameter, value] = halves('--out', each, 'NAME=FILE:BYTES');
    const [, file, size] = /^(.+):(\d+)$/.exec(value) ?? [];
    if (file === undefined) throw new LpqError('LPQ_USAGE', '--out takes NAME=FILE:BYTES', { got: each });
    if (existsSync(file))
      throw new LpqError('LPQ_OUTPUT_EXISTS', `the output ${file} exists already`, {
        hint: 'Choose another path or remove it first; lpq never overwrites.',
      });
    const output = new Uint8Array(Number(size));
    args[parameter] = { output };
    return { parameter, file, output };
  });
  const found = await (flags.device === 'cpu' ? interpret : launch)(name, flags, args, run);
  for (const { file, output } of outputs) write(file, output);
  const { unwritten = {}, printed = '' } = found;
  for (const { parameter } of outputs)
    if (unwritten[parameter]! > 0) run.report.warn(`${unwritten[parameter]} bytes of ${parameter} were not written`);
  run.report.result({ command: 'tilus run', device: flags.device, ...found }, printed);
}

interface Found {
  readonly name: string;
  readonly executed?: number;
  readonly unwritten?: Readonly<Record<string, number>>;
  readonly printed?: string;
}

async function interpret(name: string, flags: RunFlags, args: LaunchArguments, run: Run): Promise<Found> {
  const { Launch } = await import('../../tilus/interpret/run.js');
  const { program } = openProgram(name, flags);
  const launch = new Launch(program, args);
  const task = run.report.task('run', launch.blocks, false);
  for (let number = 0, turn = performance.now(); number < launch.blocks; number++) {
    launch.block(number);
    if (performance.now() - turn < TURN_MS) continue;
    // Signals are heard between blocks.
    await setImmediate();
    run.interrupt.check();
    task.update(number + 1, `block ${number + 1}`);
    turn = performance.now();
  }
  task.end();
  return { name: program.name, ...launch.result() };
}

async function launch(name: string, flags: RunFlags, args: LaunchArguments, run: Run): Promise<Found> {
  const { Launch } = await import('../../tilus/interpret/run.js');
  const { compile } = await import('../../tilus/compile/compile.js');
  const { buildCubins } = await import('../../tilus/device/nvcc.js');
  const { runOnDevice } = await import('../../tilus/device/run.js');
  const { withFolder } = await import('./nvcc.js');
  const { rt, gpu } = openDevice(run, flags.device);
  const { program } = openProgram(name, flags, knownArch(gpu.arch));
  new Launch(program, args); // the same errors as on the CPU
  const kernel = compile(program);
  await withFolder(async (folder) => {
    tell('compiling with nvcc');
    const [cubin] = await buildCubins([kernel], gpu.arch, folder);
    tell(`running on ${gpu.name}`);
    await runOnDevice(rt, { program, kernel, cubin: cubin! }, args);
  });
  return { name: program.name };
}

function halves(option: string, text: string, expected: string): [string, string] {
  const at = text.indexOf('=');
  if (at < 1) throw new LpqError('LPQ_USAGE', `${option} takes ${expected}`, { got: text });
  return [text.slice(0, at), text.slice(at + 1)];
}

function bytesOf(file: string): Uint8Array {
  try {
    return new Uint8Array(readFileSync(file));
  } catch (cause) {
    throw new LpqError('LPQ_FILE', `the input ${file} could not be read`, { got: file, cause });
  }
}

function write(file: string, bytes: Uint8Array): void {
  const temporary = `${file}.lpq-tmp-${process.pid}`;
  try {
    writeFileSync(temporary, bytes);
    renameSync(temporary, file);
  } catch (cause) {
    rmSync(temporary, { force: true });
    throw writeError(file, cause);
  }
}
