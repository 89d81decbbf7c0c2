import type { Command } from 'commander';
import { modelDirectory } from './hub.js';
import { kvOptions } from './method.js';
import { integer } from './parse.js';
import { type ComputeOptions, computeOptions, openRuntime, type Run } from './run.js';
import { openAnySource } from './sources.js';
import { duration } from './units.js';

interface EvalOptions extends ComputeOptions {
  readonly text: string;
  readonly ctx: number;
  readonly kv?: string;
}

/** `lpq eval DIR --text FILE --ctx N`: perplexity of a source, quantized or packed directory. */
export function evalCommand(program: Command, run: Run): Command {
  return computeOptions(
    kvOptions(
      program
        .command('eval')
        .description('perplexity of a plain, quantized or packed checkpoint on a text')
        .argument('<dir>', 'directory of the checkpoint, or ORG/NAME[@REVISION] of the Hugging Face Hub')
        .requiredOption('--text <file>', 'a text file, or .jsonl with {"text": ...} or {"messages": ...} lines')
        .option('--ctx <n>', 'tokens of a window', integer('--ctx', 2), 512),
    ),
  ).action((dir: string, options: EvalOptions) => evaluate(dir, options, run));
}

async function evaluate(given: string, options: EvalOptions, run: Run): Promise<void> {
  const dir = await modelDirectory(given, run);
  const started = performance.now();
  const { textPerplexity } = await import('../eval/perplexity.js');
  const { cacheDevice, checkKvFlags, withCache } = await import('./kv.js');
  const wish = checkKvFlags(options);
  const rt = openRuntime(run, { ...options, device: cacheDevice(dir, wish, options.device) });
  const opened = await openAnySource(dir, rt);
  const source = withCache(opened, wish);
  try {
    let task: ReturnType<typeof run.report.task> | undefined;
    const found = await textPerplexity(rt, source, options.text, {
      ctx: options.ctx,
      onProgress: (done, total) => {
        run.interrupt.check();
        task ??= run.report.task('eval', total, false);
        task.update(done);
      },
    });
    task?.end();
    const seconds = (performance.now() - started) / 1000;
    const error = found.standardError === null ? '' : ` ± ${found.standardError.toPrecision(2)}`;
    run.report.result(
      { dir, ...found, seconds },
      `ppl ${found.ppl.toFixed(4)}${error}   ${found.tokens} tokens scored in ${found.windows} windows of ${found.ctx}   ${found.text}   ${duration(seconds)}\n`,
    );
  } finally {
    opened.close();
  }
}
