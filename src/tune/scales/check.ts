import { LpqError } from '../../core/error.js';
import { planSource } from '../../model/graph.js';
import type { WeightSource } from '../../model/source.js';
import type { ModulePlan } from '../../quantize/plan.js';
import { withoutGradient } from '../block.js';
import { hasTrainedScales } from './trained-scales.js';

/** Throws LPQ_USAGE where there is no way for a gradient through the model, or no scales for it to train. */
export function requireTrainedScales(source: WeightSource, plan: ModulePlan): void {
  const { blocks, architecture } = planSource(source);
  for (const [index, block] of blocks.entries()) {
    const lacking = withoutGradient(block);
    if (lacking !== undefined)
      throw new LpqError('LPQ_USAGE', `--tune-scales cannot train ${source.dir}: block ${index} has ${lacking}`, {
        got: architecture,
        expected: 'a model whose operations all have gradients (docs/methods.md)',
        hint: 'Leave it out; --tune trains the blocks that have gradients.',
      });
  }
  const schemes = [...plan.values()];
  if (schemes.some(hasTrainedScales)) return;
  throw new LpqError('LPQ_USAGE', '--tune-scales has no effect on scales of 8 bits or of two levels', {
    expected: '--scale-dtype f16, bf16 or f32, without --group-scales integer',
    hint: 'Leave it out.',
  });
}
