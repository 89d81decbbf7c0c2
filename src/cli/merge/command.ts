import type { Command } from 'commander';
import { counted } from '../../core/words.js';
import { registerOutput } from '../options/run-output.js';
import { progress, type Run } from '../run.js';
import { line } from '../terminal/terminal.js';
import { duration } from '../terminal/units.js';

/** `lpq merge OUT`: puts OUT.shard-0-of-N and the others together. */
export function mergeCommand(program: Command, run: Run): Command {
  return program
    .command('merge')
    .description('join the shards that several processes made with --shard')
    .argument('<out>', 'the output (-o, --save-stats) of quantize or pack; its shards lie beside it')
    .action((output: string) => merge(output, run));
}

async function merge(output: string, run: Run): Promise<void> {
  const { mergeShards } = await import('../../../formats/shards/merge.js');
  const { refuseExisting } = await import('../../../formats/directory/place.js');
  refuseExisting(output);
  const started = performance.now();
  const { step, end } = progress(run, 'merge');
  const merged = await mergeShards(output, {
    check: () => run.interrupt.check(),
    onOutput: (made) => registerOutput(made, run),
    onModule: (name, done, total) => step(done, total, name),
  });
  end();
  const seconds = (performance.now() - started) / 1000;
  const what =
    merged.of === 'statistics'
      ? `the statistics of ${counted(merged.modules, 'input')}`
      : counted(merged.modules, 'module');
  run.report.result(
    { command: 'merge', output, ...merged, seconds },
    line`merged ${what} of ${counted(merged.shards, 'shard')} into ${output}, ${duration(seconds)}; you can remove the shards\n`,
  );
}
