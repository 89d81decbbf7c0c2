import { counted } from '../../core/words.js';
import type { WeightSource } from '../../model/source.js';
import type { Run } from '../run.js';

/** What a figure was taken of, in words. */
export function scored({
  tokens,
  windows,
  ctx,
  prefix,
}: {
  tokens: number;
  windows: number;
  ctx: number;
  prefix: readonly number[];
}): string {
  const begun = prefix.length > 0 ? `, each behind token ${prefix.join(' ')}` : '';
  return `${tokens} tokens scored in ${counted(windows, 'window')} of ${ctx}${begun}`;
}

/**
 * Warns of windows beyond the positions that a model was made for, where perplexity says nothing about its weights. To be called when the
 * text is known to have such windows, and before anything is computed.
 */
export async function lengthWarning(source: WeightSource, ctx: number, run: Run): Promise<() => void> {
  const { statedContext } = await import('../../model/context.js');
  const { tokens, because } = statedContext(source);
  return () => {
    if (ctx > tokens)
      run.report.warn(
        `windows of ${ctx} tokens are longer than the ${tokens} that the model was made for (${because}), which raises the perplexity: use --ctx ${tokens} or less`,
        { ctx, made: tokens },
      );
  };
}
