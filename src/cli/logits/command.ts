import { rmSync } from 'node:fs';
import path from 'node:path';
import type { Command } from 'commander';
import { modelDirectory } from '../options/hub.js';
import { checkProducts, productsOption, productsUsed } from '../options/products.js';
import { type ComputeOptions, computeOptions, openRuntime, type Run } from '../run.js';
import { line } from '../terminal/terminal.js';

interface LogitsOptions extends ComputeOptions {
  readonly ids: string;
  readonly output: string;
}

/** `lpq logits DIR --ids FILE -o FILE`: compute logits of given tokens, to compare with another implementation. */
export function logitsCommand(program: Command, run: Run): Command {
  return computeOptions(
    productsOption(
      program
        .command('logits')
        .description('compute logits of given tokens, to compare with another implementation')
        .argument(
          '<dir>',
          'directory of a plain, quantized or packed checkpoint, a .gguf file, or ORG/NAME[@REVISION] on the Hub',
        )
        .requiredOption('--ids <file>', 'safetensors with input_ids, I32 or I64 [B,T]')
        .requiredOption('-o, --output <file>', 'safetensors to write: logits F32 [B,T,V]'),
    ),
  ).action((dir: string, options: LogitsOptions) => logits(dir, options, run));
}

async function logits(given: string, options: LogitsOptions, run: Run): Promise<void> {
  (await import('../../../formats/directory/place.js')).refuseExisting(options.output);
  const dir = await modelDirectory(given, run);
  const started = performance.now();
  const { writeLogits } = await import('../../eval/logits.js');
  const output = path.resolve(options.output);
  const rt = openRuntime(run, options);
  checkProducts(rt, options);
  const { openWeights } = await import('../../artifact/open.js');
  const source = await openWeights(dir, rt);
  // The writer's own name for the file until it is complete.
  run.interrupt.cleanup(() =>
    rmSync(path.join(path.dirname(output), `.${path.basename(output)}.lpq-tmp-${process.pid}`), { force: true }),
  );
  try {
    const shape = await writeLogits(rt, source, options.ids, output);
    const seconds = (performance.now() - started) / 1000;
    run.report.result(
      { dir, output, shape, ...productsUsed(rt), seconds },
      line`logits F32 [${shape.join(', ')}] written to ${options.output} in ${seconds.toFixed(1)}s\n`,
    );
  } finally {
    source.close();
  }
}
