import type { Evaluation } from '../../../formats/report/schema.js';
import type { Divergence } from '../../eval/divergence.js';

/** What two checkpoints make of a text, as reports have it; `name`: of the source. */
export function evaluationOf(found: Divergence, name: string): Evaluation {
  const { text, sha256, ctx, prefix, windows, tokens, ppl, referencePpl, kl, sameTop } = found;
  const side = ({ mean, error }: typeof ppl) => ({ ppl: mean, error });
  return {
    ...{ text, sha256, ctx, prefix: [...prefix], windows, tokens },
    perplexity: side(ppl),
    source: { name, perplexity: side(referencePpl), kl, sameTop },
  };
}
