import type { Command } from 'commander';
import { benchAttentionCommand } from './bench-attention.js';
import { benchKernelsCommand } from './bench-kernels.js';
import { benchModelCommand } from './bench-model.js';
import { benchPackCommand } from './bench-pack.js';
import { benchQuantizeCommand } from './bench-quantize.js';
import { benchRtnCommand } from './bench-rtn.js';
import { commonOptions, type Run } from './run.js';

/** `lpq bench quantize`, `rtn`, `kernels`, `attention`, `pack` and `model`. */
export function benchCommand(program: Command, run: Run): Command {
  const bench = program.command('bench').description('measure lpq on synthetic checkpoints and weights of any shape');
  const commands = [
    benchQuantizeCommand,
    benchRtnCommand,
    benchKernelsCommand,
    benchAttentionCommand,
    benchPackCommand,
    benchModelCommand,
  ];
  for (const command of commands) commonOptions(command(bench, run));
  return bench;
}
