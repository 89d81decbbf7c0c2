import { counted } from '../../core/words.js';
import type { Estimate } from '../../eval/estimate.js';
import { openEvaluated } from '../options/kv.js';
import { productsUsed } from '../options/products.js';
import { progress, type Run } from '../run.js';
import { line } from '../terminal/terminal.js';
import { duration } from '../terminal/units.js';
import type { EvalFlags } from './command.js';

/** `eval --choices` and `eval --last-word`. */
export async function evaluateTask(dir: string, options: EvalFlags, run: Run): Promise<void> {
  const started = performance.now();
  const { evaluateChoices, evaluateLastWords } = await import('../../eval/tasks.js');
  const { rt, source, close } = await openEvaluated(dir, options, run);
  const { step: onProgress, end } = progress(run, 'eval', false);
  const share = ({ mean, error }: Estimate) =>
    `${(100 * mean).toFixed(2)}${error === null ? '' : ` ± ${(100 * error).toPrecision(2)}`} %`;
  try {
    if (options.choices !== undefined) {
      const found = await evaluateChoices(rt, source, options.choices, { bos: options.bos, onProgress });
      end();
      const seconds = (performance.now() - started) / 1000;
      run.report.result(
        { dir, ...found, ...productsUsed(rt), seconds },
        line`accuracy ${share(found.accuracy)}   a character ${share(found.normalised)}   ${counted(found.questions, 'question')}   ${found.text}   ${duration(seconds)}\n`,
      );
      return;
    }
    const found = await evaluateLastWords(rt, source, options.lastWord as string, { bos: options.bos, onProgress });
    end();
    const seconds = (performance.now() - started) / 1000;
    const { mean, error } = found.perplexity;
    run.report.result(
      { dir, ...found, ...productsUsed(rt), seconds },
      line`last words ${share(found.accuracy)}   ppl ${mean.toFixed(4)}${error === null ? '' : ` ± ${error.toPrecision(2)}`}   ${counted(found.words, 'text')}   ${found.text}   ${duration(seconds)}\n`,
    );
  } finally {
    close();
  }
}
