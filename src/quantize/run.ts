import type { Provenance, Quality } from '../../formats/canonical/schema.js';
import { SourceCheckpoint } from '../../formats/canonical/source.js';
import type { ModuleDeclaration } from '../../formats/canonical/tensors.js';
import { CanonicalWriter } from '../../formats/canonical/write.js';
import { OutputDirectory } from '../../formats/directory/output-directory.js';
import { fromTyped, type NativeRuntime, type Tensor } from '../../native/binding.js';
import type { Calibration } from '../calibrate/text.js';
import { LpqError } from '../core/error.js';
import { openModel, unusedTensors } from '../model/graph.js';
import type { Block, LinearRef, ModelGraph, Stage } from '../model/program.js';
import type { BlockContext, FinishedModule } from './blocks.js';
import { type QuantizeEvents, timed } from './events.js';
import { zerosOf } from './grid.js';
import { quantizeModel } from './model.js';
import type { Quantizer } from './quantizer.js';
import { disposeModule, type QuantizedModule } from './result.js';
import { rtnQuantizer } from './rtn-quantizer.js';
import { type ModuleRule, schemeOf } from './rules.js';
import { printScheme, type QuantScheme } from './scheme.js';
import { WriteBehind } from './write-behind.js';

export type { QuantizeEvents, Span } from './events.js';

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
  const linears = graph.blocks.flatMap(({ stages }) =>
    stages.flatMap(({ feeds }) => feeds.flatMap((feed) => feed.linears)),
  );
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
 * any number of threads, and on the same devices. Throws LPQ_OUTPUT_EXISTS before any work, and what reading, solving and writing throw.
 */
export async function quantizeCheckpoint(
  rts: readonly NativeRuntime[],
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
    const output = await OutputDirectory.create(request.output);
    register(output);
    try {
      await timed(events, 'write', () => output.carryFrom(request.source));
      const writer = await CanonicalWriter.create(output, {
        modules: new Map([...plan].map(([name, { linear, scheme }]) => [name, declare(source, linear, scheme)])),
        carried: carried.map((name) => source.weights.spec(name)),
        config: source.config,
      });
      const behind = new WriteBehind();
      const carrying = new WriteBehind();
      try {
        for (const name of carried) await carry(carrying, writer, source, name);
        const lines: ModuleLine[] = [];
        const context: BlockContext = {
          quantizer: request.quantizer,
          fallback: rtnQuantizer(),
          schemes,
          onStage: (block: Block, stage: Stage) => events.onStage?.(block.index, graph.blocks.length, stage.id),
          onModule: (module) => {
            const kept = keepTensors(module.result);
            return timed(events, 'write', () =>
              behind.add(
                kept.bytes,
                async () => {
                  const line = await writeModule(writer, { ...module, result: kept.result });
                  return () => {
                    lines.push(line);
                    events.onModule?.(line);
                  };
                },
                kept.dispose,
              ),
            );
          },
        };
        await quantizeModel(context, rts, request, source, graph, events);
        await timed(events, 'write', async () => {
          await behind.settle();
          await carrying.settle();
          await writer.finish(provenance(request, source));
          await output.commit();
        });
        return summarize(lines, carried.length, plan);
      } catch (error) {
        await Promise.all([behind.abandon(), carrying.abandon()]);
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

/** Queues a tensor that goes through unchanged; it is opened in its turn, so that any number may wait. */
function carry(behind: WriteBehind, writer: CanonicalWriter, source: SourceCheckpoint, name: string): Promise<void> {
  const write = async () => {
    const tensor = source.weights.tensor(name);
    try {
      await writer.writeCarried(name, tensor);
    } finally {
      tensor.dispose();
    }
    return undefined;
  };
  return behind.add(0, write, () => {});
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

/** Views of a result's tensors, which outlive those that the quantizer disposes of. */
function keepTensors(result: QuantizedModule): { result: QuantizedModule; bytes: number; dispose(): void } {
  const view = (tensor: Tensor) => tensor.view(tensor.shape);
  const kept = {
    ...result,
    codes: view(result.codes),
    scales: view(result.scales),
    ...(result.zeros && { zeros: view(result.zeros) }),
  };
  const bytes = kept.codes.byteLength + kept.scales.byteLength + (kept.zeros?.byteLength ?? 0);
  return { result: kept, bytes, dispose: () => disposeModule(kept) };
}

async function writeModule(writer: CanonicalWriter, module: FinishedModule): Promise<ModuleLine> {
  const { linear, result, relativeError, tokens } = module;
  // No seconds in the checkpoint: the same request gives the same bytes.
  const { seconds = 0, ...measured } = result.quality;
  const quality: Quality = { ...measured, relativeError };
  await writer.writeModule(
    linear.name,
    {
      codes: result.codes,
      scales: result.scales,
      ...(result.zeros && { zeros: result.zeros }),
      ...(result.globalScale !== undefined && {
        global_scale: fromTyped('f32', [1], Float32Array.of(result.globalScale)),
      }),
    },
    quality,
  );
  return { name: linear.name, scheme: printScheme(result.scheme), ...quality, tokens, seconds };
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
