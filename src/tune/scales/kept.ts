import type { BlockPlan, ModelPlan } from '../../model/plan.js';
import type { Block, LinearRef } from '../../model/program.js';
import { linearsOf } from '../../quantize/linears.js';

/** Bytes of a pass of so many tokens, and of the block's weights: each linear's input and output; tokens go through some experts each. */
function passBytes(block: Block, { mlp }: BlockPlan, tokens: number): number {
  const linears = linearsOf(block);
  const of = (some: readonly LinearRef[]) => some.reduce((sum, { n, k }) => sum + n + k, 0);
  const perToken = mlp.kind === 'experts' ? mlp.routing.perToken : 0;
  const made =
    of(linears.filter(({ expert }) => expert === undefined)) +
    perToken * of(linears.filter(({ expert }) => expert === 0));
  return 4 * (linears.reduce((sum, { n, k }) => sum + n * k, 0) + tokens * made);
}

/** The last blocks whose passes of so many tokens can be kept in `room` bytes, and their bytes. Passes make h alone: keys that later blocks read are no part of them. */
export function keptBlocks(
  blocks: readonly Block[],
  { blocks: plans }: Pick<ModelPlan, 'blocks'>,
  tokens: number,
  room: number,
): { readonly blocks: ReadonlySet<Block>; readonly bytes: number } {
  const kept = new Set<Block>();
  let bytes = 0;
  for (const block of blocks.toReversed()) {
    const more = passBytes(block, plans[block.index] as BlockPlan, tokens);
    if (bytes + more > room) break;
    kept.add(block);
    bytes += more;
  }
  return { blocks: kept, bytes };
}
