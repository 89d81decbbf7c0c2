import { groupCount } from '../../core/granularity.js';
import type { BlockPlan, ModelPlan } from '../../model/plan.js';
import type { Block, LinearRef, ModelGraph } from '../../model/program.js';
import { linearsOf } from '../../quantize/linears.js';
import type { ModulePlan } from '../../quantize/plan.js';
import { keptBlocks } from './kept.js';
import { HELD_MOST, STEP_TOKENS } from './options.js';
import { ON_HOST } from './sizes.js';
import { heldBytes } from './teacher.js';

/** How often the held-out batches are asked: every so many steps, but at most so often. */
const [STEPS_A_LOOK, MOST_LOOKS] = [10, 10];

export function looksOf(steps: number): number {
  return Math.min(MOST_LOOKS, Math.ceil(steps / STEPS_A_LOOK));
}

/** Operations of the products of a token through a block's linears, forward; an expert sees its share of the tokens. */
export function blockOperations(block: Block, plan: BlockPlan | undefined): number {
  const share = plan?.mlp.kind === 'experts' ? plan.mlp.routing.perToken / plan.mlp.router.n : 1;
  return linearsOf(block).reduce((sum, { n, k, expert }) => sum + 2 * n * k * (expert === undefined ? 1 : share), 0);
}

/** Numbers a token that a pass of a block makes, with their gradients; experts, who share the tokens, count as one. */
export function madeFloats(block: Block): number {
  const of = (linears: readonly LinearRef[]) => linears.reduce((sum, { n, k }) => sum + 2 * (n + k), 0);
  const linears = linearsOf(block);
  return of(linears.filter(({ expert }) => expert === undefined)) + of(linears.filter(({ expert }) => expert === 0));
}

/**
 * Operations of training scales, at the least: a step takes the quantized model forward and back (twice as much), and forward again but for
 * blocks that are kept in `room` bytes; a look the quantized one alone. The unquantized model is not in it, since its batches may be few, nor attention.
 */
export function scaleOperations(
  { blocks, head }: ModelGraph,
  { blocks: plans }: ModelPlan,
  steps: number,
  room = ON_HOST.kept,
): number {
  const own = blocks.filter(({ predicts }) => !predicts);
  const inside = own.reduce((sum, block) => sum + blockOperations(block, plans[block.index]), 0);
  const kept = keptBlocks(own, { blocks: plans }, STEP_TOKENS, room).blocks;
  const again = own
    .filter((block) => !kept.has(block))
    .reduce((sum, block) => sum + blockOperations(block, plans[block.index]), 0);
  const end = 2 * head.n * head.k;
  const looks = (1 + looksOf(steps)) * HELD_MOST;
  return STEP_TOKENS * (steps * (3 * inside + again + 3 * end) + looks * (inside + 2 * end));
}

/** Bytes that training scales holds at its fullest, beside the process: the docs tell of what (docs/methods.md). */
export function scaleMemory(graph: ModelGraph, plan: ModelPlan, modules: ModulePlan): number {
  const own = graph.blocks.filter(({ predicts }) => !predicts);
  const states = (own.length + 2) * STEP_TOKENS * graph.stream * 4;
  // A block's weights as floats, one gradient of a weight, and what its operations make with its gradients.
  const block = Math.max(
    ...own.map((each) => {
      const linears = linearsOf(each);
      const weights = linears.reduce((sum, { n, k }) => sum + n * k, 0);
      const most = Math.max(...linears.map(({ n, k }) => n * k));
      return 4 * (weights + most + madeFloats(each) * STEP_TOKENS);
    }),
  );
  // Five floats a group, and the codes, which are mapped.
  const trained = [...modules.values()].reduce((sum, { linear: { n, k }, scheme }) => {
    const groups = n * groupCount(scheme.granularity, k);
    return sum + 7 * 4 * groups + (n * k * scheme.type.bits) / 8;
  }, 0);
  const head = 4 * graph.head.n * graph.head.k;
  const held = HELD_MOST * STEP_TOKENS * plan.head.k * 4;
  const taught = ON_HOST.held + Math.max(ON_HOST.atOnce, heldBytes({ graph, plan }, STEP_TOKENS));
  const { bytes } = keptBlocks(own, plan, STEP_TOKENS, ON_HOST.kept);
  return states + block + trained + head + held + taught + bytes + 4 * 2 ** 26;
}
