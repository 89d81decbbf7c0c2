import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { Streams } from '../calibrate/statistics.js';
import { LpqError } from '../core/error.js';
import { planSource } from '../model/graph.js';
import type { BlockPlan } from '../model/plan.js';
import type { Block, BlockWeights, ModelGraph } from '../model/program.js';
import { disposeWeights, loadWeights } from '../model/weights.js';
import { type BlockContext, quantizeBlock, replayBlock, solvedWhole, type Walk } from './blocks.js';
import { calibratedStreams, disposeStreams, headStage, ORIGINAL_SHARE } from './calibrated.js';
import { type QuantizeEvents, timed } from './events.js';
import { quantizeFromStatistics } from './from-statistics.js';
import type { BlockKey } from './journal.js';
import type { Lane } from './lanes.js';
import { type BlockMemory, blockMemory, mayPrefetch } from './memory-plan.js';
import type { Finished } from './progress.js';
import type { KeptModules } from './redo.js';
import type { QuantizeRequest } from './run.js';
import { makeSolvingStreams } from './solving.js';
import type { SourceView } from './source-view.js';
import { WeightPipeline } from './weight-pipeline.js';
import { quantizeWholeBlock } from './whole-block.js';

/** Quantizes every module of a model that has a scheme, block by block, on all the devices given. */
export async function quantizeModel(
  context: BlockContext,
  rts: readonly NativeRuntime[],
  request: QuantizeRequest,
  source: SourceView,
  graph: ModelGraph,
  events: QuantizeEvents,
  progress: Finished,
  kept?: KeptModules,
): Promise<void> {
  const { quantizer, calibration } = request;
  if (quantizer.statistics) makeSolvingStreams(rts, graph);
  const work = workOf(graph, request, progress);
  if (work.length === 0) return;
  if (!quantizer.statistics) return quantizeAlone(context, rts[0] as NativeRuntime, work, source, events, progress);
  if (request.statistics && !quantizer.solveBlock)
    return quantizeFromStatistics(context, rts, request.statistics, work, source, events, progress);
  if (!calibration)
    throw new LpqError('LPQ_USAGE', `--method ${quantizer.method} needs a calibration text`, {
      hint: 'Give one with --calib.',
    });
  // D may come of a part of the batches; targets of a block are wanted of all.
  const paired = !quantizer.original ? 0 : quantizer.solveBlock ? 1 : ORIGINAL_SHARE;
  const solveWhole = wholeBlocks(context, source);
  const resumed = progress.resumed(source);
  const load = (names: Iterable<string>) => {
    const list = [...names];
    return Promise.all(rts.map((rt) => loadWeights(rt, resumed, list, graph.transposed)));
  };
  // Without the unquantized model beside it, a finished block computes with what was written of it alone.
  const loadBlock = ({ key, block }: Work) =>
    load(
      resumed !== source && paired === 0 && !kept && progress.has(key)
        ? [...block.tensors.keys()].filter((name) => !context.schemes.has(name.replace(/\.weight$/, '')))
        : block.tensors.keys(),
    );
  const outer = await timed(events, 'read', () => load(graph.outer.keys()));
  let streams: Streams[] = [];
  let next: Promise<BlockWeights[]> = Promise.resolve([]);
  const begin = (wanted: Work) => {
    next = loadBlock(wanted);
    next.catch(() => {}); // whoever waits for them hears of it
  };
  // What the streams still need of the block before, until the first sweep of the next is over.
  let behind: { weights: BlockWeights[]; made: Tensor[] } = { weights: [], made: [] };
  const release = () => {
    for (const weights of behind.weights) disposeWeights(weights);
    for (const tensor of behind.made) tensor.dispose();
    behind = { weights: [], made: [] };
  };
  try {
    streams = await calibratedStreams(rts, graph, outer, calibration.sequences, {
      ...{ paired, coverage: quantizer.coverage, batchTokens: quantizer.batchTokens },
    });
    if (!work.some(({ key }) => key === 'head')) for (const weights of outer) disposeWeights(weights);
    if (work[0]) begin(work[0]);
    for (const [index, { key, block }] of work.entries()) {
      await timed(events, 'block', async () => {
        const head = key === 'head';
        const weights = head ? outer : await timed(events, 'read', () => next);
        if (!head) next = Promise.resolve([]);
        const lanes = lanesOf(rts, streams, weights, request);
        const memory = blockMemory(
          block,
          graph.stream,
          quantizer.original || quantizer.solveBlock ? 2 : 1,
          quantizer.blockBytes?.(block),
        );
        const following = work[index + 1];
        const wanted = following && following.key !== 'head' ? following : undefined;
        const ahead = wanted !== undefined && rts.every((rt) => mayPrefetch(rt, memory, block));
        const walk: Walk = {
          memory,
          held: heldBytes(memory, ahead),
          onFirstSweep: async () => {
            release();
            if (ahead) begin(wanted); // on their way to the device while this block is solved
          },
        };
        const made: Tensor[] = [];
        try {
          if (kept) made.push(...placed(lanes, (rt) => kept.weights(rt, block)));
          if (progress.has(key)) {
            made.push(...placed(lanes, (rt) => progress.replayed(rt, block, context.schemes)));
            await replayBlock(context, block, lanes, walk, !head && solvedWhole(context, block));
          } else made.push(...(await (head ? quantizeBlock : solveWhole)(context, block, lanes, walk)));
        } finally {
          behind.made.push(...made);
          if (!head) behind.weights.push(...weights);
        }
        if (wanted && !ahead) begin(wanted);
      });
    }
  } finally {
    release();
    for (const weights of [...(await next.catch(() => [])), ...outer]) disposeWeights(weights);
    disposeStreams(streams);
  }
}

/** How a block of the model is solved: whole, where the method does so and there is something to solve, or feed by feed. */
function wholeBlocks({ quantizer }: BlockContext, source: SourceView): typeof quantizeBlock {
  if (!quantizer.solveBlock) return quantizeBlock;
  const solve = quantizer.solveBlock.bind(quantizer);
  const { blocks, predictions } = planSource(source);
  const plans = [...blocks, ...predictions];
  return (context, block, lanes, walk) =>
    solvedWhole(context, block)
      ? quantizeWholeBlock(context, solve, plans[block.index] as BlockPlan, block, lanes, walk)
      : quantizeBlock(context, block, lanes, walk);
}

/** A block, or the head, to quantize. */
export interface Work {
  readonly key: BlockKey;
  readonly block: Block;
}

/** The blocks to walk through: up to the last one with something left to do, for those behind it need no activations. */
function workOf(graph: ModelGraph, request: QuantizeRequest, progress: Finished): Work[] {
  const all: Work[] = graph.blocks.map((block) => ({ key: block.index, block }));
  // Layers of multi-token prediction change what the head reads.
  const own = graph.blocks.findIndex(({ predicts }) => predicts);
  if (request.lmHead) all.splice(own < 0 ? all.length : own, 0, { key: 'head', block: headBlock(graph) });
  return all.slice(0, all.findLastIndex(({ key }) => !progress.has(key)) + 1);
}

/** Puts weights that stored codes stand for in every lane's place of the source's; returns them, for their disposal. */
function placed(lanes: readonly Lane[], weightsOn: (rt: NativeRuntime) => BlockWeights): Tensor[] {
  return lanes.flatMap(({ rt, current }) => {
    const weights = weightsOn(rt);
    for (const [name, tensor] of weights) current.set(name, tensor);
    return [...weights.values()];
  });
}

/** Source and quantized weights of the block, and those of the next that come meanwhile or of the one before that stay. */
function heldBytes({ weights }: BlockMemory, ahead: boolean): number {
  return (ahead ? 3 : 2) * weights;
}

function lanesOf(
  rts: readonly NativeRuntime[],
  streams: readonly Streams[],
  weights: readonly BlockWeights[],
  { activations }: QuantizeRequest,
): Lane[] {
  // The original model gathers too: its weights have their columns in that order.
  const gathered = new Map(
    [...(activations ?? [])].flatMap(([name, { order }]) => (order ? [[name, { order }] as const] : [])),
  );
  return rts.map((rt, i) => {
    const source = weights[i] as BlockWeights;
    const current: BlockWeights = new Map(source);
    if (gathered.size > 0) source.activations = gathered;
    if (activations) current.activations = new Map(activations);
    return { rt, streams: streams[i] as Streams, source, current };
  });
}

function headBlock(graph: ModelGraph): Block {
  return { index: graph.blocks.length - 1, tensors: graph.outer, stages: [headStage(graph)] };
}

/** Without calibration: several modules in flight. */
async function quantizeAlone(
  context: BlockContext,
  rt: NativeRuntime,
  work: readonly Work[],
  source: SourceView,
  events: QuantizeEvents,
  progress: Finished,
): Promise<void> {
  const pipeline = new WeightPipeline(context, rt, source);
  try {
    for (const { key, block } of work) {
      if (progress.has(key)) continue;
      await timed(events, 'block', async () => {
        for (const stage of block.stages) {
          context.onStage(block, stage);
          for (const feed of stage.feeds) await pipeline.add(feed.linears);
        }
      });
    }
    await pipeline.drain();
  } catch (error) {
    await pipeline.drain().catch(() => {}); // what was under way before counts for a resumed run
    throw error;
  } finally {
    await pipeline.abandon();
  }
}
