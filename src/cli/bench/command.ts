import type { Command } from 'commander';
import { commonOptions, type Run } from '../run.js';
import { benchAttentionCommand } from './attention.js';
import { benchKernelsCommand } from './kernels.js';
import { benchModelCommand } from './model.js';
import { benchPackCommand } from './pack.js';
import { benchQuantizeCommand } from './quantize.js';
import { benchRtnCommand } from './rtn.js';
import { benchTilusCommand } from './tilus.js';

/** `lpq bench quantize`, `rtn`, `kernels`, `attention`, `pack`, `model` and `tilus`. */
export function benchCommand(program: Command, run: Run): Command {
  const bench = program.command('bench').description('time lpq on synthetic checkpoints and weights of any shape');
  const commands = [
    benchQuantizeCommand,
    benchRtnCommand,
    benchKernelsCommand,
    benchAttentionCommand,
    benchPackCommand,
    benchModelCommand,
    benchTilusCommand,
  ];
  for (const command of commands) commonOptions(command(bench, run));
  return bench;
}
