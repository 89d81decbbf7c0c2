import type { SourceCheckpoint } from '../../formats/canonical/source.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { Streams } from '../calibrate/statistics.js';
import { LpqError } from '../core/error.js';
import type { Block, BlockWeights, ModelGraph } from '../model/program.js';
import { disposeWeights, loadWeights } from '../model/weights.js';
import { type BlockContext, quantizeBlock, type Walk } from './blocks.js';
import { calibratedStreams, disposeStreams, headStage } from './calibrated.js';
import { type QuantizeEvents, timed } from './events.js';
import type { Lane } from './lanes.js';
import { type BlockMemory, blockMemory, mayPrefetch } from './memory-plan.js';
import { WeightPipeline } from './rtn-pipeline.js';
import type { QuantizeRequest } from './run.js';

/** Quantizes every module of a model that has a scheme, block by block, on all the devices given. */
export async function quantizeModel(
  context: BlockContext,
  rts: readonly NativeRuntime[],
  request: QuantizeRequest,
  source: SourceCheckpoint,
  graph: ModelGraph,
  events: QuantizeEvents,
): Promise<void> {
  const { quantizer, calibration } = request;
  if (!quantizer.statistics) return quantizeAlone(context, rts[0] as NativeRuntime, request, source, graph, events);
  if (!calibration)
    throw new LpqError('LPQ_USAGE', `--method ${quantizer.method} needs a calibration text`, {
      hint: 'Give one with --calib.',
    });
  const load = (names: Iterable<string>) =>
    timed(events, 'read', () => {
      const list = [...names];
      return Promise.all(rts.map((rt) => loadWeights(rt, source, list)));
    });
  const outer = await load(graph.outer.keys());
  let streams: Streams[] = [];
  let next: BlockWeights[] = [];
  // What the streams still need of the block before, until the first sweep of the next is over.
  let behind: { weights: BlockWeights[]; made: Tensor[] } = { weights: [], made: [] };
  const release = () => {
    for (const weights of behind.weights) disposeWeights(weights);
    for (const tensor of behind.made) tensor.dispose();
    behind = { weights: [], made: [] };
  };
  try {
    streams = await calibratedStreams(rts, graph, outer, calibration.sequences, quantizer.original);
    if (!request.lmHead) for (const weights of outer) disposeWeights(weights);
    next = await load(graph.blocks[0]?.tensors.keys() ?? []);
    const last = graph.blocks.length - 1;
    const blocks = request.lmHead ? [...graph.blocks, headBlock(graph)] : graph.blocks;
    for (const [index, block] of blocks.entries())
      await timed(events, 'block', async () => {
        const head = index > last;
        const weights = head ? outer : next;
        if (!head) next = [];
        const lanes = lanesOf(rts, streams, weights);
        const memory = blockMemory(block, graph.hidden, quantizer.original ? 2 : 1);
        const ahead = index < last && rts.every((rt) => mayPrefetch(rt, memory, block));
        const load_next = async () => {
          next = await load(graph.blocks[index + 1]?.tensors.keys() ?? []);
        };
        const walk: Walk = {
          memory,
          held: heldBytes(memory, ahead),
          onFirstSweep: async () => {
            release();
            if (ahead) await load_next(); // on their way to the device while this block is solved
          },
        };
        try {
          behind.made.push(...(await quantizeBlock(context, block, lanes, walk)));
        } finally {
          if (!head) behind.weights.push(...weights);
        }
        if (!ahead && index < last) await load_next();
      });
  } finally {
    release();
    for (const weights of [...next, ...outer]) disposeWeights(weights);
    disposeStreams(streams);
  }
}

/** Source and quantized weights of the block, and those of the next that come meanwhile or of the one before that stay. */
function heldBytes({ weights }: BlockMemory, ahead: boolean): number {
  return (ahead ? 3 : 2) * weights;
}

function lanesOf(rts: readonly NativeRuntime[], streams: readonly Streams[], weights: readonly BlockWeights[]): Lane[] {
  return rts.map((rt, i) => {
    const source = weights[i] as BlockWeights;
    return { rt, streams: streams[i] as Streams, source, current: new Map(source) };
  });
}

function headBlock(graph: ModelGraph): Block {
  return { index: graph.blocks.length - 1, tensors: graph.outer, stages: [headStage(graph)] };
}

/** Without calibration: several modules in flight. */
async function quantizeAlone(
  context: BlockContext,
  rt: NativeRuntime,
  request: QuantizeRequest,
  source: SourceCheckpoint,
  graph: ModelGraph,
  events: QuantizeEvents,
): Promise<void> {
  const pipeline = new WeightPipeline(context, rt, source);
  try {
    for (const block of graph.blocks)
      await timed(events, 'block', async () => {
        for (const stage of block.stages) {
          context.onStage(block, stage);
          for (const feed of stage.feeds) await pipeline.add(feed.linears);
        }
      });
    if (request.lmHead) await pipeline.add([graph.head]);
    await pipeline.drain();
  } finally {
    await pipeline.abandon();
  }
}
