import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import { checkIds, type TokenBatch } from './batch.js';
import type { Block, BlockState, BlockWeights, ModelGraph } from './program.js';
import { joinSiblings } from './siblings.js';
import type { WeightSource } from './source.js';
import { stackExperts } from './stacked-experts.js';
import { disposeWeights, loadWeights } from './weights.js';

export interface ForwardHooks {
  /** After each batch of each block. */
  readonly onBatch?: (block: number, batch: number) => void;
  /** After each block: the states, computed; they must not be changed or disposed of. */
  readonly onBlock?: (block: number, states: readonly BlockState[]) => void | Promise<void>;
}

/** All weights outside the blocks; the caller disposes of them with disposeWeights. */
export function loadOuter(rt: NativeRuntime, source: WeightSource, graph: ModelGraph): Promise<BlockWeights> {
  return loadWeights(rt, source, graph.outer.keys());
}

/** The states that enter block 0, one a batch. Throws LPQ_CONFIG for tokens outside the vocabulary, or too many. */
export function embedBatches(
  rt: NativeRuntime,
  graph: ModelGraph,
  outer: BlockWeights,
  batches: readonly TokenBatch[],
): BlockState[] {
  for (const batch of batches) {
    checkIds(batch.hostIds, graph.vocab, 'the text');
    if (graph.longest !== undefined && batch.longest > graph.longest)
      throw new LpqError('LPQ_CONFIG', 'a sequence is longer than the positions that the model has learned', {
        got: `${batch.longest} tokens`,
        expected: `at most ${graph.longest}`,
        hint: 'Use shorter sequences.',
      });
  }
  return batches.map((batch) => {
    const h = graph.embed(rt, outer, batch.ids, batch.positions);
    const carried = graph.carried(rt, outer, batch.ids, h);
    return { batch, h, aux: {}, ...(carried && { carried }) };
  });
}

/** Takes one state through all stages of a block. */
export async function runBlock(
  rt: NativeRuntime,
  block: Block,
  weights: BlockWeights,
  state: BlockState,
): Promise<BlockState> {
  let next = state;
  for (const stage of block.stages) next = await stage.advance(rt, weights, next);
  return next;
}

/**
 * Takes every batch through every block, holding the weights of one block and the residual stream of all batches
 * (tokens * hidden * 4 bytes). Returns the states after the last block, final norm not applied.
 */
export async function runForward(
  rt: NativeRuntime,
  source: WeightSource,
  graph: ModelGraph,
  outer: BlockWeights,
  batches: readonly TokenBatch[],
  hooks: ForwardHooks = {},
): Promise<BlockState[]> {
  const states = embedBatches(rt, graph, outer, batches);
  try {
    for (const block of graph.blocks) {
      const weights = await loadWeights(rt, source, block.tensors.keys(), graph.transposed);
      try {
        if (rt.device !== 'cpu') {
          await joinSiblings(rt, block, weights);
          stackExperts(rt, block, weights);
        }
        for (let i = 0; i < states.length; i++) {
          tell(`block ${block.index + 1} of ${graph.blocks.length}, batch`, i, states.length);
          states[i] = await runBlock(rt, block, weights, states[i] as BlockState);
          // Outputs are allocated when enqueued: waiting here bounds memory to one batch's activations.
          await rt.sync();
          hooks.onBatch?.(block.index, i);
        }
      } finally {
        disposeWeights(weights);
      }
      await hooks.onBlock?.(block.index, states);
    }
  } catch (error) {
    disposeStates(states);
    throw error;
  }
  return states;
}

export function disposeStates(states: readonly BlockState[]): void {
  for (const { h, aux, carried = {} } of states)
    for (const tensor of [h, ...[aux, carried].flatMap((held) => Object.values(held) as Tensor[])]) tensor.dispose();
}
