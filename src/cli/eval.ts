import type { Command } from 'commander';
import { modelDirectory } from './hub.js';
import { kvOptions } from './method.js';
import { integer } from './parse.js';
import { type ComputeOptions, computeOptions, type Run } from './run.js';
import { duration } from './units.js';

export interface EvalOptions extends ComputeOptions {
  readonly text: string;
  readonly ctx: number;
  readonly kv?: string;
  readonly source?: string;
  readonly report?: boolean;
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
        .option('--ctx <n>', 'tokens of a window', integer('--ctx', 2), 512)
        .option(
          '--source <dir>',
          'the checkpoint that was quantized: also its perplexity, and the KL divergence from it',
        )
        .option('--report', 'add the result to the report beside DIR (docs/reports.md)'),
    ),
  ).action((dir: string, options: EvalOptions) => evaluate(dir, options, run));
}

async function evaluate(given: string, options: EvalOptions, run: Run): Promise<void> {
  const dir = await modelDirectory(given, run);
  if (options.source !== undefined || options.report)
    return (await import('./eval-report.js')).evaluateAgainst(dir, options, run);
  const started = performance.now();
  const { textPerplexity } = await import('../eval/perplexity.js');
  const { openEvaluated } = await import('./kv.js');
  const { rt, source, close } = await openEvaluated(dir, options, run);
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
    close();
  }
}
