import type { Provenance, Quality } from '../../formats/canonical/schema.js';
import { SourceCheckpoint } from '../../formats/canonical/source.js';
import type { ModuleDeclaration } from '../../formats/canonical/tensors.js';
import { type CanonicalPlan, CanonicalWriter, plannedShards } from '../../formats/canonical/write.js';
import { OutputDirectory } from '../../formats/directory/output-directory.js';
import type { PartialMode } from '../../formats/directory/partial.js';
import type { NativeRuntime } from '../../native/binding.js';
import type { Calibration } from '../calibrate/text.js';
import { LpqError } from '../core/error.js';
import { openModel, unusedTensors } from '../model/graph.js';
import type { Block, BlockWeights, LinearRef, ModelGraph, Stage } from '../model/program.js';
import { disposeWeights, loadWeights } from '../model/weights.js';
import { type BlockContext, quantizeBlock, quantizeFeed, type Streams } from './blocks.js';
import { calibratedStreams, disposeStreams, quantizeHead } from './calibrated.js';
import { zerosOf } from './grid.js';
import { runIdentity } from './identity.js';
import type { BlockKey } from './journal.js';
import { linearsOf, Progress, timed } from './progress.js';
import type { Quantizer } from './quantizer.js';
import { replayBlock } from './replay.js';
import { rtnQuantizer } from './rtn-quantizer.js';
import { type ModuleRule, schemeOf } from './rules.js';
import { earlierRun, RunLog } from './run-log.js';
import type { QuantScheme } from './scheme.js';
import { WriteBehind } from './write-behind.js';

/** What is quantized and how; everything the output's bytes depend on. */
export interface QuantizeRequest {
  /** Directory of the source checkpoint, and of the result, which must not exist. */
  readonly source: string;
  readonly output: string;
  readonly scheme: QuantScheme;
  readonly rules: readonly ModuleRule[];
  readonly quantizer: Quantizer;
  /** Needed by quantizers that take statistics. */
  readonly calibration: Calibration | undefined;
  /** Also quantize lm_head, where it is not tied to the embedding. */
  readonly lmHead: boolean;
  /** Recorded in the provenance, as the user gave them. */
  readonly options: Readonly<Record<string, unknown>>;
  readonly version: string;
  /** What to do about what a stopped run left of this output; 'new' (refuse it) unless told. The bytes are the same. */
  readonly partial?: PartialMode;
}

/** What a resumed run need not do again. */
export interface Resumption {
  /** Of the blocks that have something to quantize. */
  readonly blocks: number;
  readonly of: number;
  readonly modules: number;
  /** Finished blocks whose bytes are not those that were written, and which are done again. */
  readonly damaged: readonly BlockKey[];
}

/** A line of the run's log, one a module. */
export interface ModuleLine extends Quality {
  readonly name: string;
  /** As printScheme() writes it: 'i4 g128'. */
  readonly scheme: string;
  /** Calibration rows that reached the module; null without calibration. */
  readonly tokens: number | null;
  readonly seconds: number;
}

export interface QuantizeEvents {
  readonly onPlan?: (plan: { modules: number; weights: number; blocks: number; left: readonly string[] }) => void;
  /** Before the first block, where a stopped run's work is taken up. */
  readonly onResume?: (resumption: Resumption) => void;
  readonly onStage?: (block: number, blocks: number, stage: string) => void;
  readonly onModule?: (line: ModuleLine) => void;
  /** Wall time of a part that has ended: what the run waited for in reading and writing files, and each whole block. */
  readonly onSpan?: (span: Span, seconds: number) => void;
}

export type Span = 'read' | 'write' | 'block';

export interface QuantizeSummary {
  readonly modules: readonly ModuleLine[];
  readonly bitsPerWeight: number;
  readonly carried: number;
}

/** The modules a request quantizes, in the order of the model. Throws LPQ_GROUP_SIZE, LPQ_USAGE. */
export function planQuantization(
  graph: ModelGraph,
  request: Pick<QuantizeRequest, 'scheme' | 'rules' | 'lmHead'>,
): Map<string, { linear: LinearRef; scheme: QuantScheme }> {
  const linears = graph.blocks.flatMap(linearsOf);
  if (request.lmHead) {
    if (graph.head.tied)
      throw new LpqError('LPQ_USAGE', 'lm_head shares its weight with the embedding and cannot be quantized alone', {
        hint: 'Leave out --lm-head for this model.',
      });
    linears.push(graph.head);
  }
  const plan = new Map<string, { linear: LinearRef; scheme: QuantScheme }>();
  for (const linear of linears) {
    const scheme = schemeOf(linear, request.scheme, request.rules);
    if (scheme) plan.set(linear.name, { linear, scheme });
  }
  if (plan.size === 0) throw new LpqError('LPQ_USAGE', 'the rules leave no module to quantize');
  return plan;
}

/**
 * Quantizes a checkpoint into a canonical directory that appears complete or not at all. Same request, same bytes: on
 * any number of threads, and however often it was stopped and resumed. After a failure the finished blocks stay in
 * NAME.partial (output.keep), for `partial: 'resume'`; without one nothing is left. Throws LPQ_OUTPUT_EXISTS,
 * LPQ_PARTIAL_EXISTS, LPQ_PARTIAL_IN_USE, LPQ_RESUME and LPQ_JOURNAL before any work, and what reading, solving and
 * writing throw.
 */
export async function quantizeCheckpoint(
  rt: NativeRuntime,
  request: QuantizeRequest,
  events: QuantizeEvents = {},
  register: (output: OutputDirectory) => void = () => {},
): Promise<QuantizeSummary> {
  const source = SourceCheckpoint.open(request.source);
  try {
    const graph = openModel(source);
    const plan = planQuantization(graph, request);
    const schemes = new Map([...plan].map(([name, { scheme }]) => [name, scheme]));
    const weightNames = new Set([...plan.keys()].map((name) => `${name}.weight`));
    const carried = [...source.names()].filter((name) => !weightNames.has(name));
    events.onPlan?.({
      modules: plan.size,
      weights: [...plan.values()].reduce((sum, { linear }) => sum + linear.n * linear.k, 0),
      blocks: graph.blocks.length,
      left: unusedTensors(source, graph),
    });
    const canonical: CanonicalPlan = {
      modules: new Map([...plan].map(([name, { linear, scheme }]) => [name, declare(source, linear, scheme)])),
      carried: carried.map((name) => source.weights.spec(name)),
      config: source.config,
    };
    const recorded = provenance(request, source);
    const identity = runIdentity(request, recorded, rt.device);
    const output = await OutputDirectory.createPartial(request.output, request.partial);
    register(output);
    try {
      const before = earlierRun(output, identity);
      if (before) await output.removeAllBut(plannedShards(canonical));
      await timed(events, 'write', () => output.carryFrom(request.source));
      const writer = await CanonicalWriter.create(output, canonical, { partial: true });
      const behind = new WriteBehind();
      let log: RunLog | undefined;
      try {
        log = await timed(events, 'read', () => RunLog.open(output, writer, identity, before));
        const progress = new Progress(log, writer, behind, events, graph, schemes);
        if (before) events.onResume?.(progress.resumption());
        const context: BlockContext = {
          rt,
          quantizer: request.quantizer,
          fallback: rtnQuantizer(rt),
          schemes,
          onStage: (block: Block, stage: Stage) => events.onStage?.(block.index, graph.blocks.length, stage.id),
          onModule: (module) => progress.module(module),
        };
        await quantizeAll(context, request, source, graph, events, progress);
        await timed(events, 'write', async () => {
          await behind.settle();
          for (const name of carried) await writer.writeCarried(name, source.weights.tensor(name));
          await progress.settle();
          await writer.finish(recorded);
          await log?.close();
          await output.commit();
        });
        return summarize(progress.lines, carried.length, plan);
      } catch (error) {
        // What was computed before counts; the failure of a write says nothing that is not known.
        await behind.settle().catch(() => {});
        await log?.close();
        await writer.abort();
        throw error;
      }
    } catch (error) {
      await output.abort();
      throw error;
    }
  } finally {
    source.close();
  }
}

async function quantizeAll(
  context: BlockContext,
  request: QuantizeRequest,
  source: SourceCheckpoint,
  graph: ModelGraph,
  events: QuantizeEvents,
  progress: Progress,
): Promise<void> {
  const { quantizer, calibration } = request;
  const withHead = request.lmHead && !progress.has('head');
  const left = graph.blocks.filter(({ index }) => !progress.has(index));
  if (!quantizer.statistics) {
    for (const block of left) {
      await timed(events, 'block', async () => {
        for (const stage of block.stages) {
          context.onStage(block, stage);
          for (const feed of stage.feeds) await quantizeWeights(context, feed.linears, source);
        }
      });
    }
    if (withHead) {
      await quantizeWeights(context, [graph.head], source);
    }
    return;
  }
  if (!calibration)
    throw new LpqError('LPQ_USAGE', `--method ${quantizer.method} needs a calibration text`, {
      hint: 'Give one with --calib.',
    });
  // Blocks after the last one to quantize need no activations.
  const end = withHead ? graph.blocks.length : (left.at(-1)?.index ?? -1) + 1;
  if (end === 0) return;
  const outer = await timed(events, 'read', () => loadWeights(context.rt, source, graph.outer.keys()));
  const streams = await calibratedStreams(context.rt, graph, outer, calibration.sequences, quantizer.original);
  try {
    const load = (index: number) =>
      timed(events, 'read', () => loadWeights(context.rt, source, graph.blocks[index]?.tensors.keys() ?? []));
    let next = await load(0);
    try {
      for (const block of graph.blocks.slice(0, end)) {
        await timed(events, 'block', async () => {
          const weights = next;
          try {
            next = await load(block.index + 1); // on their way to the device while this block is solved
            if (progress.has(block.index)) await replay(context, block, weights, streams, progress);
            else await quantizeBlock(context, block, weights, streams);
          } finally {
            disposeWeights(weights);
          }
        });
      }
    } finally {
      disposeWeights(next);
    }
    if (withHead) {
      await quantizeHead(context, graph, outer, streams);
    }
  } finally {
    disposeStreams(streams);
    disposeWeights(outer);
  }
}

async function replay(
  context: BlockContext,
  block: Block,
  weights: BlockWeights,
  streams: Streams,
  progress: Progress,
): Promise<void> {
  const quantized = progress.replayed(context, block);
  try {
    await replayBlock(block, weights, quantized, streams);
  } finally {
    disposeWeights(quantized);
  }
}

/** Linears of a method that looks at weights only, one at a time, so that memory does not grow with the model. */
async function quantizeWeights(
  context: BlockContext,
  linears: readonly LinearRef[],
  source: SourceCheckpoint,
): Promise<void> {
  for (const linear of linears) {
    if (!context.schemes.has(linear.name)) continue;
    const name = `${linear.name}.weight`;
    const weights = await loadWeights(context.rt, source, [name]);
    try {
      await quantizeFeed({ ...context, dequantize: false }, { id: linear.name, linears: [linear] }, weights, undefined);
    } finally {
      disposeWeights(weights);
      source.weights.advise(name, 'dontneed');
    }
  }
}

function declare(source: SourceCheckpoint, linear: LinearRef, scheme: QuantScheme): ModuleDeclaration {
  const size = scheme.granularity.kind === 'channel' ? linear.k : scheme.granularity.size;
  return {
    type: scheme.type.name,
    shape: [linear.n, linear.k],
    granularity: scheme.granularity,
    scales: { dtype: scheme.scaleDtype, block: [1, size], global: scheme.globalScale },
    zeros: zerosOf(scheme),
    groupIndex: false,
    permutation: false,
    sparsity: 'none',
    sourceDtype: source.weights.dtype(`${linear.name}.weight`),
  };
}

function provenance(request: QuantizeRequest, source: SourceCheckpoint): Provenance {
  const { calibration } = request;
  return {
    lpq: request.version,
    source: {
      name: source.dir.split('/').filter(Boolean).at(-1) ?? '',
      revision: null,
      fingerprint: source.weights.fingerprint(),
    },
    method: request.quantizer.method,
    options: { ...request.options, ...request.quantizer.options },
    calibration: calibration
      ? {
          name: calibration.name,
          sha256: calibration.sha256,
          sequences: calibration.sequences.length,
          tokens: calibration.tokens,
          seed: calibration.seed,
        }
      : null,
  };
}

function summarize(
  lines: readonly ModuleLine[],
  carried: number,
  plan: ReadonlyMap<string, { linear: LinearRef }>,
): QuantizeSummary {
  let bits = 0;
  let weights = 0;
  for (const line of lines) {
    const { n, k } = (plan.get(line.name) as { linear: LinearRef }).linear;
    bits += line.bitsPerWeight * n * k;
    weights += n * k;
  }
  return { modules: lines, bitsPerWeight: bits / weights, carried };
}
