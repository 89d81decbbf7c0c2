import type { MeasuredRuntime } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import type { QuantType } from '../../core/quant-type.js';
import { type Cache, type CacheShape, makeCache } from '../../generate/cache.js';
import { disposeResident, type ResidentModel } from '../../generate/resident.js';
import { disposeStep, makeStep, runStep } from '../../generate/step.js';
import { kvSchemeOf } from '../../kv/choose.js';
import { architectureOf } from '../../model/architectures/index.js';
import { buildGraph } from '../../model/graph.js';
import { type ModelPlan, planModel } from '../../model/plan.js';
import type { BlockWeights } from '../../model/program.js';
import { Noise } from '../kernels/operands.js';
import { machineOf } from '../machine.js';
import type { ModelShape } from '../shapes.js';
import { record } from './record.js';
import type { ModelBench, ModelRow } from './schema.js';
import { secondsOf, sharesOf } from './time.js';
import { randomModel } from './weights.js';

export interface ModelBenchRequest {
  readonly shape: ModelShape;
  /** Blocks that are measured; the time of the others is taken to be theirs. */
  readonly blocks: number;
  /** Of the weights; undefined: 16 bits. */
  readonly types: readonly (QuantType | undefined)[];
  readonly group: number;
  readonly kv: readonly (16 | 8 | 4 | 2)[];
  /** Sequences of a decode step, and tokens of each. */
  readonly m: readonly number[];
  readonly contexts: readonly number[];
  /** Tokens of one prompt, read at once; 0: none is measured. */
  readonly prefill: number;
  readonly passes: number;
  readonly lpq: string;
  readonly processor: string;
}

export interface ModelBenchEvents {
  readonly onRow?: (row: ModelRow) => void;
  readonly onStep?: (what: string, done: number, total: number) => void;
  /** Throws to stop. */
  readonly check?: () => void;
}

interface Point {
  readonly type: QuantType | undefined;
  readonly kv: 16 | 8 | 4 | 2;
  readonly phase: 'prefill' | 'decode';
  readonly m: number;
  readonly context: number;
}

/** Token ids need no meaning, only rows of the embedding. */
const ID_STEP = 7919;

/**
 * Times steps of a model with random weights: our graph, recorded once and replayed by the device where it can. Throws LPQ_USAGE for
 * shapes with mixtures of experts, whose routing is read back between stages, LPQ_DEVICE for caches of few bits on the CPU, LPQ_CONFIG.
 */
export async function benchModel(
  rt: MeasuredRuntime,
  request: ModelBenchRequest,
  events: ModelBenchEvents = {},
): Promise<ModelBench> {
  const started = performance.now();
  const { shape, types, blocks, passes } = request;
  const config = { ...shape.config, num_hidden_layers: blocks };
  const plan = planModel(architectureOf(config, shape.name), config, shape.name);
  requireDense(plan, shape.name);
  if (rt.device === 'cpu' && request.kv.some((bits) => bits < 16))
    throw new LpqError('LPQ_DEVICE', 'steps over a cache of few bits are timed on a CUDA device only', {
      got: rt.device,
      hint: 'Use --device cuda, or --kv 16.',
    });
  const graph = buildGraph(plan);
  const noise = new Noise(rt);
  const rows: ModelRow[] = [];
  const leftOut: string[] = [];
  const total = types.length * pointsOf(undefined, request).length;
  let done = 0;
  try {
    for (const type of types) {
      const model = randomModel(rt, noise, graph, { type, group: request.group });
      try {
        for (const point of pointsOf(type, request)) {
          events.check?.();
          const what = nameOf(point);
          events.onStep?.(what, done++, total);
          try {
            const row = await measure(rt, noise, model, plan, point, request);
            rows.push(row);
            events.onRow?.(row);
          } catch (error) {
            if (!isMemory(error)) throw error;
            // What was still queued fails with it.
            await rt.sync().catch(() => {});
            leftOut.push(what);
          }
        }
      } finally {
        disposeResident(model);
      }
    }
  } finally {
    noise.dispose();
  }
  return {
    format: 'lpq-model-bench',
    version: 1,
    lpq: request.lpq,
    date: new Date().toISOString().slice(0, 10),
    machine: machineOf(rt, request.processor),
    shape: shape.name,
    blocks: shape.blocks,
    measuredBlocks: blocks,
    group: request.group,
    activations: rt.activationDtype,
    passes,
    rows,
    leftOut,
    seconds: (performance.now() - started) / 1000,
  };
}

function pointsOf(type: QuantType | undefined, { kv, m, contexts, prefill }: ModelBenchRequest): Point[] {
  return kv.flatMap((bits) => [
    ...(prefill > 0 ? [{ type, kv: bits, phase: 'prefill' as const, m: 1, context: prefill }] : []),
    ...m.flatMap((sequences) =>
      contexts.map((context) => ({ type, kv: bits, phase: 'decode' as const, m: sequences, context })),
    ),
  ]);
}

function nameOf({ type, kv, phase, m, context }: Point): string {
  return `${type?.name ?? 'dense'} KV${kv} ${phase} M=${m} of ${context}`;
}

async function measure(
  rt: MeasuredRuntime,
  noise: Noise,
  model: ResidentModel,
  plan: ModelPlan,
  point: Point,
  { shape, passes, blocks }: ModelBenchRequest,
): Promise<ModelRow> {
  const { type, kv, phase, m, context } = point;
  const recorder = record(rt);
  const count = phase === 'prefill' ? context : 1;
  const step = makeStep(
    rt,
    Array.from({ length: m }, (_, slot) => ({
      slot,
      past: context - count,
      ids: Int32Array.from({ length: count }, (_, i) => ((slot + i) * ID_STEP) % plan.vocab),
    })),
  );
  const places = { blocks, slots: m, most: context };
  const cache = cacheOf(recorder.runtime, plan, kv, places);
  try {
    const logits = await runStep(recorder.runtime, model, cache, step);
    logits.dispose();
    for (const tensor of cache.tensors()) {
      const sixteen = tensor.dtype !== 'u8';
      noise.spread(sixteen ? 'numbers' : 'codes', tensor);
    }
    const seconds = await secondsOf(rt, recorder.calls, model, { passes, measured: blocks, all: shape.blocks });
    const shares = await sharesOf(rt, recorder.calls, passes);
    const outerBytes = bytesOf(model.outer);
    const blockBytes = model.blocks.reduce((sum, weights) => sum + bytesOf(weights), 0);
    return {
      weights: type?.name ?? 'dense',
      kv,
      phase,
      m,
      context,
      ms: 1e3 * seconds,
      tokensPerSecond: (m * count) / seconds,
      shares,
      calls: recorder.calls.length,
      weightBytes: outerBytes + Math.round((blockBytes * shape.blocks) / blocks),
      cacheBytes: Math.max(1, Math.round((cache.bytes * shape.blocks) / blocks)),
    };
  } finally {
    recorder.dispose();
    cache.dispose();
    disposeStep(step);
  }
}

function cacheOf(
  rt: MeasuredRuntime | Parameters<typeof makeCache>[0],
  plan: ModelPlan,
  kv: Point['kv'],
  shape: CacheShape,
): Cache {
  if (kv === 16) return makeCache(rt, rt.device === 'cpu' ? 'f16' : 'exact', shape);
  const [first] = plan.blocks;
  const { attention } = first as ModelPlan['blocks'][number];
  const headDim = attention.kind === 'mla' ? attention.value : attention.headDim;
  return makeCache(rt, kvSchemeOf({ kv: String(kv) as '2' | '4' | '8' }, headDim), shape);
}

function bytesOf(weights: BlockWeights): number {
  const packed = [...(weights.packed?.values() ?? [])].flatMap(({ weights: codes, scales }) => [codes, scales]);
  return [...weights.values(), ...packed].reduce((sum, tensor) => sum + tensor.byteLength, 0);
}

function requireDense(plan: ModelPlan, name: string): void {
  const at = plan.blocks.findIndex(({ mlp }) => mlp.kind === 'experts');
  if (at < 0) return;
  throw new LpqError(
    'LPQ_USAGE',
    `block ${at} of ${name} has a mixture of experts, whose routing a recorded step cannot follow`,
    {
      hint: 'Use the shape of a dense model.',
    },
  );
}

function isMemory(error: unknown): boolean {
  const code = (error as { code?: string }).code;
  return code === 'LPQ_CUDA_MEMORY' || code === 'LPQ_NATIVE_MEMORY' || code === 'LPQ_MEMORY';
}
