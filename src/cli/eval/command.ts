import type { Command } from 'commander';
import type { BosMode } from '../../calibrate/prefix.js';
import { LpqError } from '../../core/error.js';
import { activationOptions } from '../options/activations.js';
import { modelDirectory } from '../options/hub.js';
import { BOS_OPTION, bosMode, integer } from '../options/parse.js';
import { productsOption } from '../options/products.js';
import { kvOptions } from '../quantize/method.js';
import { type ComputeOptions, computeOptions, progress, type Run } from '../run.js';
import { line } from '../terminal/terminal.js';
import { duration } from '../terminal/units.js';
import { lengthWarning, scored } from './windows.js';

export interface EvalFlags extends ComputeOptions {
  readonly text?: string;
  readonly choices?: string;
  readonly lastWord?: string;
  readonly ctx: number;
  readonly bos?: BosMode;
  readonly kv?: string;
  readonly source?: string;
  readonly report?: boolean;
}

/** The same of an evaluation of a text. */
export interface TextOptions extends EvalFlags {
  readonly text: string;
}

/** `lpq eval DIR --text FILE --ctx N`: perplexity of a source, quantized or packed directory; or the answers of --choices and --last-word. */
export function evalCommand(program: Command, run: Run): Command {
  return computeOptions(
    productsOption(
      activationOptions(
        kvOptions(
          program
            .command('eval')
            .description(
              'measure perplexity on a text, or answers to questions, of a plain, quantized or packed checkpoint',
            )
            .argument(
              '<dir>',
              'directory of the checkpoint, a .gguf file, or ORG/NAME[@REVISION] on the Hugging Face Hub',
            )
            .option('--text <file>', 'a text file, or .jsonl with {"text": ...} or {"messages": ...} lines')
            .option(
              '--choices <file>',
              '.jsonl with {"context": ..., "choices": [...], "answer": 0} lines: measure how many answers are right',
            )
            .option(
              '--last-word <file>',
              '.jsonl with {"text": ...} lines: measure how many last words the model would write',
            )
            .option('--ctx <n>', 'tokens in a window', integer('--ctx', 2), 512)
            .option('--bos <kind>', BOS_OPTION, bosMode, 'auto')
            .option(
              '--source <dir>',
              'the unquantized checkpoint: also measure its perplexity, and the KL divergence from it',
            )
            .option('--report', 'add the result to the report beside DIR (docs/reports.md)'),
        ),
      ),
    ),
  ).action((dir: string, flags: EvalFlags) => evaluate(dir, flags, run));
}

async function evaluate(given: string, flags: EvalFlags, run: Run): Promise<void> {
  const options = textOptions(flags);
  const dir = await modelDirectory(given, run);
  if (!options) return (await import('./tasks.js')).evaluateTask(dir, flags, run);
  if (options.source !== undefined || options.report)
    return (await import('./report.js')).evaluateAgainst(dir, options, run);
  const started = performance.now();
  const { textPerplexity } = await import('../../eval/perplexity.js');
  const { cacheSize, openEvaluated } = await import('../options/kv.js');
  const { productsUsed } = await import('../options/products.js');
  const { rt, source, close } = await openEvaluated(dir, options, run);
  try {
    const onWindows = await lengthWarning(source, options.ctx, run);
    const { step: onProgress, end } = progress(run, 'eval', false);
    const { ctx, bos } = options;
    const found = await textPerplexity(rt, source, options.text, { ctx, bos, onWindows, onProgress });
    end();
    const seconds = (performance.now() - started) / 1000;
    const size = cacheSize(source);
    const error = found.standardError === null ? '' : ` ± ${found.standardError.toPrecision(2)}`;
    run.report.result(
      { dir, ...found, ...productsUsed(rt), ...(size && { cache: size.cache }), seconds },
      line`ppl ${found.ppl.toFixed(4)}${error}   ${scored(found)}   ${found.text}   ${duration(seconds)}\n` +
        (size?.told ?? ''),
    );
  } finally {
    close();
  }
}

/** The flags where a text is to be evaluated; undefined where something else is. Throws LPQ_USAGE. */
function textOptions(flags: EvalFlags): TextOptions | undefined {
  const { text, choices, lastWord, source, report } = flags;
  const given = [
    ...(text === undefined ? [] : ['--text']),
    ...(choices === undefined ? [] : ['--choices']),
    ...(lastWord === undefined ? [] : ['--last-word']),
  ];
  if (given.length === 0)
    throw new LpqError(
      'LPQ_USAGE',
      'the file to evaluate on is missing: --text FILE, --choices FILE or --last-word FILE',
    );
  if (given.length > 1) throw new LpqError('LPQ_USAGE', `${given.join(' and ')} exclude each other`);
  if (text !== undefined) return { ...flags, text };
  if (source !== undefined || report)
    throw new LpqError('LPQ_USAGE', `${report ? '--report' : '--source'} has no effect without --text`);
  return undefined;
}
