import type { MeasuredRuntime, TimedCall } from '../../native/binding.js';
import { tell } from '../../src/core/activity.js';
import { LpqError } from '../../src/core/error.js';
import { type Cache, type CacheShape, makeCache } from '../../src/generate/cache.js';
import { pageTokens } from '../../src/generate/device-packed-cache.js';
import { disposeResident, type ResidentModel } from '../../src/generate/resident.js';
import { disposeStep, makeStep, runStep } from '../../src/generate/step.js';
import { kvSchemeOf } from '../../src/kv/choose.js';
import { architectureOf } from '../../src/model/architectures/index.js';
import { buildGraph } from '../../src/model/graph.js';
import { type ModelPlan, planModel } from '../../src/model/plan.js';
import type { ModelGraph } from '../../src/model/program.js';
import type { KvScheme } from '../../src/model/source.js';
import { Noise } from '../kernels/operands.js';
import { type BenchEvents, benchRecord } from '../record.js';
import type { ModelShape } from '../shapes.js';
import { expertTables, readsCounts, requireForm, requireHead, type WeightForm } from './forms.js';
import { Scratch } from './memory.js';
import { record } from './record.js';
import type { ModelBench, ModelRow } from './schema.js';
import { secondsOf, sharesOf } from './time.js';
import { randomModel, weightBytes } from './weights.js';

export interface ModelBenchRequest {
  readonly shape: ModelShape;
  /** Blocks that are measured; the time of the others is taken to be theirs. */
  readonly blocks: number;
  readonly forms: readonly WeightForm[];
  /** Of types: weights that share a scale; 0: a row. */
  readonly group: number;
  /** Of w4ax: share of the blocks of activations that have 4 bits. */
  readonly int4Share: number;
  /** What lm_head is multiplied as. */
  readonly head: WeightForm;
  readonly kv: readonly (16 | 8 | 4 | 2)[];
  /** Sequences of a decode step, and tokens of each. */
  readonly m: readonly number[];
  readonly contexts: readonly number[];
  /** Tokens of one prompt, read at once; 0: none is measured. */
  readonly prefill: number;
  readonly passes: number;
  readonly lpq: string;
}

interface Point {
  readonly form: WeightForm;
  readonly kv: 16 | 8 | 4 | 2;
  readonly phase: 'prefill' | 'decode';
  readonly m: number;
  readonly context: number;
}

/** Token ids need no meaning, only rows of the embedding. */
const ID_STEP = 7919;

/**
 * Times steps of a model with random weights: our graph, recorded once and replayed by the device where it can; of a mixture
 * whose experts are multiplied one by one with those that the recorded step chose, and without the time in which the host reads their
 * counts back. Throws LPQ_DEVICE for caches of few bits on the
 * CPU, LPQ_CONFIG, and what requireForm and requireHead throw.
 */
export async function benchModel(
  rt: MeasuredRuntime,
  request: ModelBenchRequest,
  events: BenchEvents<ModelRow> = {},
): Promise<ModelBench> {
  const started = performance.now();
  const { shape, forms, blocks, passes } = request;
  const whole = planModel(architectureOf(shape.config, shape.name), shape.config, shape.name);
  const plan = { ...whole, blocks: whole.blocks.slice(0, blocks) };
  if (rt.device === 'cpu' && request.kv.some((bits) => bits < 16))
    throw new LpqError('LPQ_DEVICE', 'steps over a low-bit KV cache can be timed on a CUDA device only', {
      got: rt.device,
      hint: 'Use --device cuda, or --kv 16.',
    });
  const graph = buildGraph(plan);
  for (const form of [...forms, request.head]) requireForm(rt, graph, shape.name, form);
  requireHead(graph, shape.name, request.head);
  const scratch = new Scratch(rt);
  const noise = new Noise(rt);
  const rows: ModelRow[] = [];
  const leftOut: string[] = [];
  const points = forms.map((form) => pointsOf(form, request));
  const total = points.flat().length;
  let done = 0;
  try {
    for (const [i, form] of forms.entries()) {
      const model = await randomModel(rt, noise, graph, form, { ...request, tables: expertTables(plan) }, (block) => {
        events.onStep?.(`${form.name}: making block ${block + 1} of ${blocks}`, done, total);
      });
      try {
        for (const point of points[i] ?? []) {
          const what = nameOf(point);
          events.onStep?.(what, done++, total);
          try {
            const row = await measure(rt, { noise, scratch }, model, plan, point, request);
            rows.push(row);
            events.onRow?.(row);
          } catch (error) {
            if (!isMemory(error)) throw error;
            // What was still queued fails with it.
            await rt.sync().catch(() => {});
            leftOut.push(`${what}: ${(error as Error).message}`);
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
    ...benchRecord('lpq-model-bench', rt, request.lpq, started),
    shape: shape.name,
    blocks: shape.blocks,
    measuredBlocks: blocks,
    group: request.group,
    int4Share: request.int4Share,
    head: request.head.name,
    activations: rt.activationDtype,
    passes,
    rows,
    leftOut,
  };
}

function pointsOf(form: WeightForm, { kv, m, contexts, prefill }: ModelBenchRequest): Point[] {
  return kv.flatMap((bits) => [
    ...(prefill > 0 ? [{ form, kv: bits, phase: 'prefill' as const, m: 1, context: prefill }] : []),
    ...m.flatMap((sequences) =>
      contexts.map((context) => ({ form, kv: bits, phase: 'decode' as const, m: sequences, context })),
    ),
  ]);
}

function nameOf({ form, kv, phase, m, context }: Point): string {
  return `${form.name} KV${kv} ${phase} M=${m} of ${context}`;
}

async function measure(
  rt: MeasuredRuntime,
  { noise, scratch }: { readonly noise: Noise; readonly scratch: Scratch },
  model: ResidentModel,
  plan: ModelPlan,
  point: Point,
  { shape, passes, blocks }: ModelBenchRequest,
): Promise<ModelRow> {
  const { form, kv, phase, m, context } = point;
  const recorder = record(rt, readsCounts(plan, model.blocks));
  const { runtime, calls } = recorder;
  const count = phase === 'prefill' ? context : 1;
  const scheme = kv === 16 ? undefined : schemeOf(plan, kv);
  const name = nameOf(point);
  try {
    tell(`${name}: recording`);
    const step = makeStep(
      runtime,
      Array.from({ length: m }, (_, slot) => ({
        slot,
        past: context - count,
        ids: Int32Array.from({ length: count }, (_, i) => ((slot + i) * ID_STEP) % plan.vocab),
      })),
    );
    const cache = cacheOf(runtime, scheme, { blocks, slots: m, most: context });
    const marked = marks(model, calls);
    const logits = await runStep(runtime, marked.model, cache, step);
    logits.dispose();
    // Numbers in pages, too: their scales must not be NaN, which has no code where products read codes.
    for (const tensor of cache.tensors()) noise.spread('numbers', tensor);
    const timing = {
      passes,
      measured: blocks,
      all: shape.blocks,
      packEvery: scheme && phase === 'decode' ? pageTokens(scheme) : 1,
      blocks: marked.blocks,
    };
    let seconds = 0;
    const besides = await scratch.during(async () => {
      tell(`${name}: timing`);
      seconds = await secondsOf(rt, calls, timing);
    });
    const spent = await sharesOf(rt, calls, timing);
    const whole = (bytes: number) => Math.round((bytes * shape.blocks) / blocks);
    const ofBlocks = model.blocks.reduce((sum, weights) => sum + weightBytes(weights), 0);
    const bytes = {
      weights: weightBytes(model.outer) + whole(ofBlocks),
      cache: Math.max(1, whole(cache.bytes)),
      work: recorder.peakBytes - cache.bytes + besides,
    };
    cache.dispose();
    disposeStep(step);
    return {
      weights: form.name,
      kv,
      phase,
      m,
      context,
      ms: 1e3 * seconds,
      tokensPerSecond: (m * count) / seconds,
      ...spent,
      calls: calls.length,
      weightBytes: bytes.weights,
      cacheBytes: bytes.cache,
      workBytes: bytes.work,
      memoryBytes: bytes.weights + bytes.cache + bytes.work,
    };
  } finally {
    recorder.dispose();
  }
}

/** The model, which tells when it is run between which calls those of its blocks are: after the embedding, before the final norm. */
function marks(model: ResidentModel, calls: readonly TimedCall[]) {
  const blocks = { first: 0, end: 0 };
  const graph: ModelGraph = {
    ...model.graph,
    embed: (...given) => {
      const h = model.graph.embed(...given);
      blocks.first = calls.length;
      return h;
    },
    logits: (...given) => {
      blocks.end = calls.length - (calls.at(-1)?.op === 'gather_rows' ? 1 : 0);
      return model.graph.logits(...given);
    },
  };
  return { model: { ...model, graph }, blocks };
}

function schemeOf(plan: ModelPlan, kv: 8 | 4 | 2): KvScheme {
  const [headDim] = plan.blocks.flatMap(({ attention }) =>
    attention.kind === 'recurrent' || attention.kind === 'nothing'
      ? []
      : [attention.kind === 'mla' ? attention.value : attention.headDim],
  );
  return kvSchemeOf({ kv: String(kv) as '2' | '4' | '8' }, headDim as number);
}

function cacheOf(rt: Parameters<typeof makeCache>[0], scheme: KvScheme | undefined, shape: CacheShape): Cache {
  return makeCache(rt, scheme ?? (rt.device === 'cpu' ? 'f16' : 'exact'), shape);
}

function isMemory(error: unknown): boolean {
  const code = (error as { code?: string }).code;
  return code === 'LPQ_CUDA_MEMORY' || code === 'LPQ_NATIVE_MEMORY' || code === 'LPQ_MEMORY';
}
