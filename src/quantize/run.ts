import { rm } from 'node:fs/promises';
import path from 'node:path';
import type { Provenance } from '../../formats/canonical/schema.js';
import { SourceCheckpoint } from '../../formats/canonical/source.js';
import type { ModuleDeclaration } from '../../formats/canonical/tensors.js';
import { type CanonicalPlan, CanonicalWriter, plannedShards } from '../../formats/canonical/write.js';
import { directoryOrigin } from '../../formats/directory/origin.js';
import { OutputDirectory } from '../../formats/directory/output-directory.js';
import type { PartialMode } from '../../formats/directory/partial.js';
import { SETTINGS_FILES } from '../../formats/foreign/settings.js';
import type { StoredLatents } from '../../formats/kv/schema.js';
import { readConfigText } from '../../formats/safetensors/checkpoint.js';
import type { ShardManifest } from '../../formats/shards/schema.js';
import { SHARD_FILE, type Shard } from '../../formats/shards/shard.js';
import type { SavedStatistics } from '../../formats/statistics/read.js';
import type { NativeRuntime } from '../../native/binding.js';
import { type Calibration, calibrationRecord } from '../calibrate/text.js';
import { LpqError } from '../core/error.js';
import type { TensorRewrite } from '../model/folded.js';
import { openBlocks, unusedTensors } from '../model/graph.js';
import type { Block, ModelGraph, Stage } from '../model/program.js';
import type { ActivationForm, KvForm } from '../model/source.js';
import type { BlockContext } from './blocks.js';
import { carryThrough } from './carry.js';
import { type ModuleLine, type QuantizeEvents, timed } from './events.js';
import { recordOf, requireStatistics } from './from-statistics.js';
import { runIdentity } from './identity.js';
import { quantizeModel } from './model.js';
import { type ModelPart, modelPart } from './model-part.js';
import type { ScaleTraining } from './model-task.js';
import { declareModule, planQuantization } from './plan.js';
import { Progress } from './progress.js';
import type { Quantizer } from './quantizer.js';
import type { Ranges } from './ranges.js';
import { KeptModules } from './redo.js';
import type { Redo } from './redo-rule.js';
import type { ModuleRule } from './rules.js';
import { earlierRun, RunLog } from './run-log.js';
import type { QuantScheme } from './scheme.js';
import { SourceView } from './source-view.js';
import { solveWholeModel } from './whole-model.js';

/** What is quantized and how; everything the output's bytes depend on. */
export interface QuantizeRequest {
  /** Directory of the source checkpoint, and of the result, which must not exist. */
  readonly source: string;
  readonly output: string;
  readonly scheme: QuantScheme;
  readonly rules: readonly ModuleRule[];
  readonly quantizer: Quantizer;
  /** Needed by quantizers that take statistics, unless those were saved. */
  readonly calibration: Calibration | undefined;
  /** Taken earlier from the unquantized model: no text, no forward pass, and blocks that do not depend on each other. */
  readonly statistics?: SavedStatistics;
  /** What every tensor of the source passes first: a function-preserving change of the model. */
  readonly rewrite?: TensorRewrite;
  /** What linears read instead of their input, by name; their weights are solved for it, and the checkpoint records it. */
  readonly activations?: ReadonlyMap<string, ActivationForm>;
  /** How the cache of keys and values, or of latents, is quantized: recorded, and no part of what weights are solved for. */
  readonly kv?: KvForm | StoredLatents;
  /** Largest magnitudes of linears' inputs, and of keys and values, to record for static scales. */
  readonly ranges?: Ranges;
  /** Also quantize lm_head, where it is not tied to the embedding. */
  readonly lmHead: boolean;
  /** Also quantize layers of multi-token prediction. */
  readonly mtp?: boolean;
  /** Recorded in the provenance, as the user gave them. */
  readonly options: Readonly<Record<string, unknown>>;
  readonly version: string;
  /** What to do about what a stopped run left of this output; 'new' (refuse it) unless told. The bytes are the same. */
  readonly partial?: PartialMode;
  /** Quantizes only what matches (the rules must leave out the rest, allButRedone()) and takes over what an earlier run made of the rest. */
  readonly redo?: Redo;
  /** Only this part of the blocks and of what is carried, into a shard for mergeShards(); for methods without a forward pass. */
  readonly shard?: Shard;
  /** Only these blocks, as if the model had no others, and nothing carried from outside of them: a trial (trial.ts). */
  readonly blocks?: readonly number[];
}

export type { ModuleLine, QuantizeEvents, Resumption, Span } from './events.js';

export interface QuantizeSummary {
  readonly modules: readonly ModuleLine[];
  readonly bitsPerWeight: number;
  readonly carried: number;
  /** What the method did to the model as a whole. */
  readonly scaleTraining?: ScaleTraining;
}

/** Throws LPQ_USAGE for a coverage of experts that a model does not have. */
function requireExperts(graph: ModelGraph, { quantizer, source }: QuantizeRequest): void {
  const feeds = graph.blocks.flatMap(({ stages }) => stages.flatMap((stage) => stage.feeds));
  if (!quantizer.coverage || feeds.some(({ linears }) => linears[0]?.expert !== undefined)) return;
  throw new LpqError('LPQ_USAGE', `--moe-coverage has no effect on ${source}, which has no experts`, {
    got: quantizer.coverage,
    hint: 'Leave it out.',
  });
}

/**
 * Quantizes a checkpoint into a canonical directory that appears complete or not at all. Same request, same bytes: on
 * any number of threads, on the same devices, and however often it was stopped and resumed. After a failure the finished blocks stay in
 * NAME.partial (output.keep), for `partial: 'resume'`; without one nothing is left. Throws LPQ_OUTPUT_EXISTS,
 * LPQ_PARTIAL_EXISTS, LPQ_PARTIAL_IN_USE, LPQ_RESUME and LPQ_JOURNAL before any work, and what reading, solving and
 * writing throw.
 */
export async function quantizeCheckpoint(
  rts: readonly NativeRuntime[],
  request: QuantizeRequest,
  events: QuantizeEvents = {},
  register: (output: OutputDirectory) => void = () => {},
): Promise<QuantizeSummary> {
  const opened = SourceCheckpoint.open(request.source);
  const checkpoint = request.blocks ? opened.ofBlocks(request.blocks) : opened;
  let kept: KeptModules | undefined;
  try {
    const source = new SourceView(checkpoint, request.rewrite);
    const graph = openBlocks(source, request.mtp);
    requireExperts(graph, request);
    if (request.redo) kept = KeptModules.open(request.redo, source, request.lmHead ? undefined : graph.head.name);
    const keptNames = [...(kept?.schemes.keys() ?? [])];
    const all = planQuantization(graph, request);
    if (request.statistics) requireStatistics(request.statistics, checkpoint, graph, new Set(all.keys()));
    const mine = partOfRun(graph, request);
    const plan = new Map([...all].filter(([name]) => mine.module(name)));
    const schemes = new Map([...plan].map(([name, { scheme }]) => [name, scheme]));
    const weightNames = new Set([...all.keys(), ...keptNames].map((name) => `${name}.weight`));
    const carried = [...source.names()].filter((name) => !weightNames.has(name)).filter(mine.carried);
    events.onPlan?.({
      modules: plan.size,
      weights: [...plan.values()].reduce((sum, { linear }) => sum + linear.n * linear.k, 0),
      blocks: graph.blocks.length,
      left: unusedTensors(source, graph),
    });
    const { ranges } = request;
    const kvMost = ranges?.cache ?? kept?.kvMost;
    const canonical: CanonicalPlan = {
      modules: new Map([
        ...(kept?.declarations() ?? []),
        ...[...plan].map(
          ([name, { linear, scheme }]) =>
            [
              name,
              declareModule(source, linear, scheme, request.activations?.get(name), ranges?.inputs?.get(name)),
            ] as const,
        ),
      ]),
      carried: carried.map((name) => source.spec(name)),
      config: readConfigText(source.dir, source.config),
      ...((request.kv ?? kept?.kv) && { kv: request.kv ?? kept?.kv }),
      ...(kvMost && { kvMost }),
    };
    const recorded = provenance(request, source, kept);
    const identity = runIdentity(request, recorded, rts);
    const output = await OutputDirectory.createPartial(request.output, request.partial);
    register(output);
    try {
      const before = earlierRun(output, identity);
      if (before) await output.removeAllBut(plannedShards(canonical));
      await timed(events, 'write', () => output.carryFrom(request.source, { except: SETTINGS_FILES }));
      const writer = await CanonicalWriter.create(output, canonical, {
        partial: true,
        ...(events.onFile && { onWhole: events.onFile }),
      });
      let log: RunLog | undefined;
      let progress: Progress | undefined;
      try {
        log = await timed(events, 'read', () => RunLog.open(output, writer, identity, before));
        progress = new Progress(log, writer, events, graph, schemes);
        if (before) events.onResume?.(progress.resumption());
        const carrying = await carryThrough(source, carried, progress);
        if (kept) for (const name of keptNames) await progress.keep(kept, name);
        const context: BlockContext = {
          quantizer: request.quantizer,
          schemes,
          onStage: (block: Block, stage: Pick<Stage, 'id'>) =>
            events.onStage?.(block.index, graph.blocks.length, stage.id),
          ...(events.onWarning && { onWarning: events.onWarning }),
          onModule: (module) => {
            const permutation = request.activations?.get(module.linear.name)?.order;
            const result = permutation ? { ...module.result, permutation } : module.result;
            return (progress as Progress).module({ ...module, result });
          },
        };
        await quantizeModel(context, rts, request, source, graph, events, progress, kept);
        await carrying.finish();
        const whole = { rts, graph, source, schemes, root: output.root };
        const scaleTraining = await solveWholeModel(whole, request, events, progress);
        await timed(events, 'write', async () => {
          await progress?.settle();
          const manifest = await writer.finish(recorded);
          if (request.shard)
            await markShard(output, { ...request.shard, of: 'canonical', config: canonical.config, manifest });
          await log?.close();
          await output.commit();
        });
        const lines = [...(kept?.lines() ?? []), ...progress.lines];
        return summarize(lines, carried.length, canonical.modules, scaleTraining);
      } catch (error) {
        await progress?.stop();
        await log?.close();
        await writer.abort();
        throw error;
      }
    } catch (error) {
      await output.abort();
      throw error;
    }
  } finally {
    kept?.close();
    checkpoint.close();
  }
}

/** What of the model this process makes. Throws LPQ_USAGE for methods whose blocks depend on each other. */
function partOfRun(graph: ModelGraph, { shard, quantizer, statistics, blocks }: QuantizeRequest): ModelPart {
  if (shard && quantizer.statistics && !statistics)
    throw new LpqError(
      'LPQ_USAGE',
      `--shard does not go with --method ${quantizer.method}, whose blocks depend on each other`,
      {
        hint: 'Use --method rtn, or saved statistics (--stats).',
      },
    );
  return modelPart(graph, shard, blocks);
}

/** Makes a finished checkpoint a shard: nothing takes it for a whole one. */
async function markShard(
  output: OutputDirectory,
  shard: Omit<Extract<ShardManifest, { of: 'canonical' }>, 'format' | 'version'>,
): Promise<void> {
  await output.writeJson(SHARD_FILE, { format: 'lpq-shard', version: 1, ...shard });
  for (const name of ['lpq.json', 'config.json']) await rm(path.join(output.path, name));
}

function provenance(request: QuantizeRequest, source: SourceView, kept: KeptModules | undefined): Provenance {
  const { calibration, statistics } = request;
  return {
    lpq: request.version,
    source: {
      ...directoryOrigin(source.dir),
      fingerprint: source.weights.fingerprint(),
    },
    method: request.quantizer.method,
    options: {
      ...request.options,
      ...request.quantizer.options,
      ...(statistics && { stats: statistics.sha256 }),
      ...(kept && { from: kept.sha256 }),
    },
    calibration: calibration ? calibrationRecord(calibration) : statistics ? recordOf(statistics) : null,
  };
}

function summarize(
  lines: readonly ModuleLine[],
  carried: number,
  modules: ReadonlyMap<string, ModuleDeclaration>,
  scaleTraining: ScaleTraining | undefined,
): QuantizeSummary {
  let bits = 0;
  let weights = 0;
  for (const line of lines) {
    const [n, k] = (modules.get(line.name) as ModuleDeclaration).shape;
    bits += line.bitsPerWeight * n * k;
    weights += n * k;
  }
  const bitsPerWeight = weights > 0 ? bits / weights : 0;
  return { modules: lines, bitsPerWeight, carried, ...(scaleTraining && { scaleTraining }) };
}
