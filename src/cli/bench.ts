import type { Command } from 'commander';
import { benchQuantizeCommand } from './bench-quantize.js';
import { benchRtnCommand } from './bench-rtn.js';
import { commonOptions, type Run } from './run.js';

/** `lpq bench quantize` and `lpq bench rtn`. */
export function benchCommand(program: Command, run: Run): Command {
  const bench = program.command('bench').description('measure lpq on a synthetic checkpoint of any shape');
  for (const command of [benchQuantizeCommand, benchRtnCommand]) commonOptions(command(bench, run));
  return bench;
}
