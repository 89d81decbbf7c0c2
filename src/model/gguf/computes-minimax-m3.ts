import type { ModelPlan } from '../plan.js';
import type { Computes } from './computes.js';
import { attentions, mixtures } from './facts.js';

/** What of its indexers and experts llama.cpp has no keys for, or computes otherwise. */
function but(plan: ModelPlan): string | undefined {
  const [mixture] = mixtures(plan);
  const width = mixture?.shared?.intermediate ?? 0;
  if (!mixture || width === 0 || width % mixture.intermediate !== 0)
    return `its shared experts are as wide as several of the others, and this one's ${width}`;
  for (const [index, { indexer, kvHeads }] of attentions(plan)) {
    const sparse = plan.blocks[index]?.mlp.kind === 'experts';
    if (sparse !== (indexer !== undefined))
      return `it has indexers in the blocks with experts, and block ${index} is no such`;
    if (indexer?.kind !== 'own') continue;
    const { heads, block } = indexer;
    if (heads !== kvHeads)
      return `it has an indexer's head for each head of keys, and block ${index} ${heads} for ${kvHeads}`;
    if ((block & (block - 1)) !== 0)
      return `it has runs of 2, 4, 8 or so many keys, and this one of ${block} (index_block_size)`;
  }
  return undefined;
}

/** What llama.cpp computes for MiniMax-M3. */
export const MINIMAX_M3: Computes = {
  pairs: 'halves',
  reads: ['partial', 'indexer'],
  head: 'own',
  clamped: true,
  router: { normalize: 'key', sigmoid: 'key', scale: true, leadingDense: true, clamped: true },
  but,
};
