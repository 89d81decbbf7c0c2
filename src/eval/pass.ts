import type { NativeRuntime } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import { BATCH_TOKENS, batchSequences, disposeBatch, type TokenBatch } from '../model/batch.js';
import { disposeStates, loadOuter, runForward } from '../model/forward.js';
import type { BlockState, BlockWeights, ModelGraph } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { disposeWeights } from '../model/weights.js';

/** Bytes of logits computed at once. */
export const LOGITS_BYTES = 2 ** 26;
/** Bytes that the residual streams of a pass may take. */
export const STATE_BYTES = 2 ** 30;

export interface PassOptions {
  /** Tokens computed at once, default BATCH_TOKENS; a sequence is never split. */
  readonly batchTokens?: number | undefined;
  /** Default STATE_BYTES; more sequences take several passes. */
  readonly stateBytes?: number | undefined;
  /** A block has taken the batch in. */
  readonly onBlock?: (batch: TokenBatch) => void;
}

/**
 * Takes sequences through a model, in passes whose residual streams fit, and hands on what each batch ends in: h f32 [T,C] before the
 * head, with the weights outside the blocks. What a sequence ends in does not depend on the others.
 */
export async function eachBatch(
  rt: NativeRuntime,
  source: WeightSource,
  graph: ModelGraph,
  sequences: readonly Int32Array[],
  use: (state: BlockState, outer: BlockWeights, batch: TokenBatch) => Promise<void>,
  { batchTokens = BATCH_TOKENS, stateBytes = STATE_BYTES, onBlock }: PassOptions = {},
): Promise<void> {
  const outer = await loadOuter(rt, source, graph);
  try {
    for (let first = 0; first < sequences.length; ) {
      let [tokens, end] = [0, first];
      const fits = (more: number): boolean => 4 * graph.stream * (tokens + more) <= stateBytes;
      while (end < sequences.length && (end === first || fits((sequences[end] as Int32Array).length)))
        tokens += (sequences[end++] as Int32Array).length;
      const batches = batchSequences(rt, sequences.slice(first, end), batchTokens);
      const onBatch = (_block: number, i: number) => onBlock?.(batches[i] as TokenBatch);
      const states = await runForward(rt, source, graph, outer, batches, { onBatch });
      try {
        for (const [i, state] of states.entries()) await use(state, outer, batches[i] as TokenBatch);
      } finally {
        disposeStates(states);
        batches.forEach(disposeBatch);
      }
      first = end;
    }
  } finally {
    disposeWeights(outer);
  }
}

/** Of logits that are NaN or infinite. */
export function notNumbers(whose: string): LpqError {
  return new LpqError('LPQ_MODULE_NUMERICS', `the logits of ${whose} hold NaN or infinity`, {
    hint: 'Check the weights for NaN: lpq inspect DIR --check names them. On CUDA, try --activations bf16.',
  });
}
