import type { Command } from 'commander';
import { benchKernelsCommand } from './bench-kernels.js';
import { benchModelCommand } from './bench-model.js';
import { benchPackCommand } from './bench-pack.js';
import { benchQuantizeCommand } from './bench-quantize.js';
import { benchRtnCommand } from './bench-rtn.js';
import { commonOptions, type Run } from './run.js';

/** `lpq bench quantize`, `rtn`, `kernels`, `pack` and `model`. */
export function benchCommand(program: Command, run: Run): Command {
  const bench = program.command('bench').description('measure lpq on synthetic checkpoints and weights of any shape');
  for (const command of [
    benchQuantizeCommand,
    benchRtnCommand,
    benchKernelsCommand,
    benchPackCommand,
    benchModelCommand,
  ])
    commonOptions(command(bench, run));
  return bench;
}
