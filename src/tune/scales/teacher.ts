import type { Tensor } from '../../../native/binding.js';
import type { TokenBatch } from '../../model/batch.js';
import { disposeStates, runForward } from '../../model/forward.js';
import type { BlockWeights } from '../../model/program.js';
import type { ModelTask } from '../../quantize/model-task.js';

/** Bytes of what the unquantized model's head reads, and of the streams before it, that are held at a time. */
export const HELD_BYTES = 2 ** 29;

/** Of a batch of so many tokens. */
export function heldBytes({ graph, plan }: Pick<ModelTask, 'graph' | 'plan'>, tokens: number): number {
  return 4 * tokens * (graph.stream + plan.head.k);
}

/** How many batches of so many tokens the unquantized model takes at once. */
export function batchesAtOnce(task: Pick<ModelTask, 'graph' | 'plan'>, tokens: number): number {
  return Math.max(1, Math.floor(HELD_BYTES / heldBytes(task, tokens)));
}

/** What the unquantized model's head reads of batches, f32 [T,K] each. The caller disposes of them. */
export async function teach(
  { rt, graph, source }: ModelTask,
  outer: BlockWeights,
  batches: readonly TokenBatch[],
): Promise<Tensor[]> {
  const own = { ...graph, blocks: graph.blocks.filter(({ predicts }) => !predicts) };
  const states = await runForward(rt, source, own, outer, batches);
  try {
    const read = states.map(({ h }) => graph.headInput(rt, outer, h));
    await rt.sync();
    return read;
  } finally {
    disposeStates(states);
  }
}
