import { allocate, type NativeRuntime, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { batchSequences, disposeBatch } from '../model/batch.js';
import { disposeStates, loadOuter, runForward } from '../model/forward.js';
import { openModel } from '../model/graph.js';
import type { WeightSource } from '../model/source.js';
import { disposeWeights } from '../model/weights.js';

/**
 * logits f32 [B,T,V] of B sequences of T tokens; ids in row-major order. The caller disposes of the result.
 * Throws LPQ_CONFIG for tokens outside the vocabulary, and what openModel throws.
 */
export async function logitsOf(
  rt: NativeRuntime,
  source: WeightSource,
  ids: Int32Array,
  shape: readonly [number, number],
): Promise<Tensor> {
  const graph = openModel(source);
  const [rows, length] = shape;
  const sequences = Array.from({ length: rows }, (_, row) => ids.slice(row * length, (row + 1) * length));
  const outer = await loadOuter(source, graph);
  const batches = batchSequences(sequences, 4096);
  try {
    const states = await runForward(rt, source, graph, outer, batches);
    const all = allocate('f32', [rows, length, graph.vocab]);
    let row = 0;
    for (const { h, batch } of states) {
      const logits = graph.logits(rt, outer, h);
      const place = all.view(logits.shape, row * graph.vocab);
      ops.cast(rt, logits, place);
      logits.dispose();
      place.dispose();
      row += batch.tokens;
      await rt.sync();
    }
    disposeStates(states);
    return all;
  } finally {
    disposeWeights(outer);
    batches.forEach(disposeBatch);
  }
}
