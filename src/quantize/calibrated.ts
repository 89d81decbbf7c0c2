import type { NativeRuntime } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { FeedStatistics } from '../calibrate/statistics.js';
import { ActivationStream, copyState } from '../calibrate/streams.js';
import { batchSequences } from '../model/batch.js';
import { embedBatches } from '../model/forward.js';
import type { BlockWeights, ModelGraph } from '../model/program.js';
import { type BlockContext, quantizeFeed, type Streams } from './blocks.js';

/**
 * Tokens that flow through the model together: enough to keep GEMMs efficient, small enough for temporaries to fit (on a
 * device of 12 GB too: 8192 x 14336 in bf16 are 0.23 GB).
 */
const BATCH_TOKENS = { cpu: 4096, device: 8192 };

/** The calibration sequences as they enter block 0: once, or twice where the method compares with the original. */
export async function calibratedStreams(
  rt: NativeRuntime,
  graph: ModelGraph,
  outer: BlockWeights,
  sequences: readonly Int32Array[],
  original: boolean,
): Promise<Streams> {
  const batches = batchSequences(rt, sequences, rt.device === 'cpu' ? BATCH_TOKENS.cpu : BATCH_TOKENS.device);
  const states = embedBatches(rt, graph, outer, batches);
  const twins = original ? states.map((state) => copyState(rt, state)) : undefined;
  await rt.sync();
  return { quantized: new ActivationStream(rt, states), original: twins && new ActivationStream(rt, twins) };
}

/** Lets go of all activations. */
export function disposeStreams(streams: Streams): void {
  streams.quantized.dispose();
  streams.original?.dispose();
}

/** Quantizes lm_head on the final norm's outputs; the streams must have passed the last block. */
export async function quantizeHead(
  context: BlockContext,
  graph: ModelGraph,
  outer: BlockWeights,
  streams: Streams,
): Promise<void> {
  const { rt } = context;
  const { k } = graph.head;
  const h = rt.allocate(rt.momentDtype, [k, k]);
  ops.zero(rt, h);
  let tokens = 0;
  try {
    for (const state of streams.quantized.states) {
      const x = graph.headInput(rt, outer, state.h);
      ops.gramAccumulate(rt, x, h);
      tokens += state.batch.tokens;
      await rt.sync();
      x.dispose();
    }
    ops.gramFinish(rt, h);
    const statistics: FeedStatistics = { h, tokens };
    const replaced = await quantizeFeed(context, { id: 'head', linears: [graph.head] }, outer, statistics);
    for (const tensor of replaced.values()) tensor.dispose();
  } finally {
    h.dispose();
  }
}
