import { existsSync } from 'node:fs';
import type { Command } from 'commander';
import { LpqError, oneOf } from '../../core/error.js';
import { commonOptions, type Run } from '../run.js';
import { line } from '../terminal/terminal.js';
import { openProgram, type ProgramFlags, programOptions } from './program.js';
import { tilusRunCommand } from './run.js';
import { tilusTuneCommand } from './tune.js';

/** `lpq tilus show`, `compile`, `run` and `tune`. */
export function tilusCommand(program: Command, run: Run): Command {
  const tilus = program.command('tilus').description('show, compile, run and tune programs of tiles');
  for (const command of [showCommand, compileCommand, tilusRunCommand, tilusTuneCommand])
    commonOptions(command(tilus, run));
  return tilus;
}

const PARTS = ['program', 'layouts', 'memory', 'cuda'] as const;

function showCommand(tilus: Command, run: Run): Command {
  return programOptions(
    tilus.command('show').description('print a program, its layouts as grids, its memory and its CUDA text'),
  )
    .option('--part <name>', `print one part only: ${PARTS.join(', ')}`)
    .action((name: string, flags: ProgramFlags & { part?: string }) => show(name, flags, run));
}

async function show(name: string, flags: ProgramFlags & { part?: string }, run: Run): Promise<void> {
  const { print } = await import('../../tilus/language/print.js');
  const { showLayouts, showMemory } = await import('../../tilus/show.js');
  const { compile } = await import('../../tilus/compile/compile.js');
  const part = flags.part === undefined ? undefined : oneOf('--part', PARTS, flags.part);
  const { source, program, arch } = openProgram(name, flags);
  const texts: Record<(typeof PARTS)[number], () => string> = {
    program: () => print(source),
    layouts: () => showLayouts(program),
    memory: () => showMemory(program, arch),
    cuda: () => compile(program).text,
  };
  const shown = part === undefined ? PARTS : [part];
  const parts = Object.fromEntries(shown.map((each) => [each, texts[each]()]));
  run.report.result(
    { command: 'tilus show', name: program.name, constants: Object.fromEntries(program.constants), ...parts },
    shown.map((each) => (part === undefined ? `# ${each}\n\n${parts[each]}` : parts[each])).join('\n'),
  );
}

function compileCommand(tilus: Command, run: Run): Command {
  return programOptions(tilus.command('compile').description('compile a program to CUDA C++, or with nvcc to a cubin'))
    .option('-o, --output <file>', 'file to write, .cu or .cubin (default: print the text)')
    .option('--name <name>', "name of the kernel (default: the program's)")
    .action((name: string, flags: CompileFlags) => compileProgram(name, flags, run));
}

interface CompileFlags extends ProgramFlags {
  readonly output?: string;
  readonly name?: string;
}

async function compileProgram(name: string, flags: CompileFlags, run: Run): Promise<void> {
  const { output } = flags;
  if (flags.name !== undefined && !/^[A-Za-z_]\w*$/.test(flags.name))
    throw new LpqError('LPQ_USAGE', '--name takes a C identifier', { got: flags.name });
  if (output !== undefined && !/\.(cu|cubin)$/.test(output))
    throw new LpqError('LPQ_USAGE', '--output takes a file that ends in .cu or .cubin', { got: output });
  if (output !== undefined && existsSync(output))
    throw new LpqError('LPQ_OUTPUT_EXISTS', `the output ${output} exists already`, {
      hint: 'Choose another path or remove it first; lpq never overwrites.',
    });
  const { compile } = await import('../../tilus/compile/compile.js');
  const { program, arch } = openProgram(name, flags);
  const kernel = compile(program, flags.name ?? program.name);
  const facts = {
    ...{ command: 'tilus compile', name: kernel.name, threads: kernel.threads, sharedBytes: kernel.sharedBytes },
    ...{
      tensorMaps: kernel.maps.map(({ name: map, box }) => ({ name: map, box })),
      workspaceBytes: kernel.workspaceBytes,
      instructions: Object.fromEntries(kernel.selected),
    },
  };
  if (output === undefined) {
    run.report.result({ ...facts, text: kernel.text }, kernel.text);
    return;
  }
  if (output.endsWith('.cu')) await (await import('../../report/write.js')).replaceFile(output, kernel.text);
  else await (await import('./nvcc.js')).writeCubin(output, kernel, arch);
  run.report.result(
    { ...facts, output },
    line`wrote ${output}: ${kernel.name}, ${kernel.threads} threads, ${kernel.sharedBytes} bytes of shared memory\n`,
  );
}
