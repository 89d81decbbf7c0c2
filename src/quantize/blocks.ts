import { type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { disposeStatistics, type FeedStatistics, stageStatistics } from '../calibrate/statistics.js';
import type { ActivationStream } from '../calibrate/streams.js';
import { LpqError } from '../core/error.js';
import type { Block, BlockWeights, Feed, LinearRef, Stage } from '../model/program.js';
import type { Quantizer } from './quantizer.js';
import { disposeModule, downloadModule, type QuantizedModule } from './result.js';
import type { QuantScheme } from './scheme.js';
import { dequantizeResult } from './stored.js';

/** One quantized module with how well it went, on its way to the checkpoint. */
export interface FinishedModule {
  readonly linear: LinearRef;
  readonly result: QuantizedModule;
  /** tr(D H Dᵀ) / tr(W H Wᵀ); null where no statistics were taken. */
  readonly relativeError: number | null;
  readonly tokens: number | null;
}

export interface BlockContext {
  readonly rt: NativeRuntime;
  readonly quantizer: Quantizer;
  /** For modules whose input was seen too rarely. */
  readonly fallback: Quantizer;
  readonly schemes: ReadonlyMap<string, QuantScheme>;
  /** Takes the module over; its tensors are disposed of when this returns. */
  readonly onModule: (module: FinishedModule) => Promise<void>;
  readonly onStage: (block: Block, stage: Stage) => void;
  /** false: nobody computes with the quantized weights, so they are not dequantized. */
  readonly dequantize?: boolean;
}

/** The activations that calibrate: what the quantized model computes and, for GPTAQ, what the original would. */
export interface Streams {
  readonly quantized: ActivationStream;
  readonly original: ActivationStream | undefined;
}

/**
 * Quantizes one block stage by stage (true-sequential): every stage's statistics are taken with all stages before it
 * already quantized, and the block's outputs for the next one are computed with the quantized weights.
 */
export async function quantizeBlock(
  context: BlockContext,
  block: Block,
  weights: BlockWeights,
  streams: Streams,
): Promise<void> {
  const current: BlockWeights = new Map(weights);
  const made: Tensor[] = [];
  streams.quantized.enter(block.stages, current);
  streams.original?.enter(block.stages, weights);
  try {
    for (const [index, stage] of block.stages.entries()) {
      context.onStage(block, stage);
      const wanted = stage.feeds.filter(({ linears }) => linears.some(({ name }) => context.schemes.has(name)));
      const ids = new Set(wanted.map(({ id }) => id));
      const statistics =
        wanted.length > 0
          ? await stageStatistics(context.rt, stage, index, streams.quantized, streams.original, ids)
          : new Map<string, FeedStatistics>();
      try {
        for (const feed of wanted) {
          const replaced = await quantizeFeed(context, feed, weights, statistics.get(feed.id));
          for (const [name, tensor] of replaced) {
            current.set(name, tensor);
            made.push(tensor);
          }
        }
      } finally {
        disposeStatistics(statistics);
      }
      await streams.quantized.pass(index);
      await streams.original?.pass(index);
    }
  } finally {
    for (const tensor of made) tensor.dispose();
  }
}

/** Fewer rows than this fraction of K say too little of a K x K Hessian. */
const FEW_ROWS = 1 / 8;

/** Quantizes the linears of a feed that have a scheme; returns their dequantized weights by full name. */
export async function quantizeFeed(
  context: BlockContext,
  feed: Feed,
  weights: BlockWeights,
  statistics: FeedStatistics | undefined,
): Promise<Map<string, Tensor>> {
  const { rt } = context;
  const k = (feed.linears[0] as LinearRef).k;
  const few = statistics !== undefined && statistics.tokens < Math.ceil(k * FEW_ROWS);
  const quantizer = few ? context.fallback : context.quantizer;
  const solver = quantizer.feed(statistics);
  const replaced = new Map<string, Tensor>();
  try {
    for (const linear of feed.linears) {
      const scheme = context.schemes.get(linear.name);
      if (!scheme) continue;
      const weight = weights.get(`${linear.name}.weight`) as Tensor;
      const solved = await solver.solve(linear.name, weight, scheme);
      const note = `only ${statistics?.tokens} calibration rows reached it; quantized without them`;
      const result = few ? { ...solved, quality: { ...solved.quality, note } } : solved;
      try {
        let relativeError: number | null = null;
        if (context.dequantize !== false) {
          const dequantized = dequantizeResult(rt, result);
          replaced.set(`${linear.name}.weight`, dequantized);
          if (statistics) relativeError = await moduleError(rt, linear, weight, dequantized, statistics);
          replaced.set(`${linear.name}.weight`, forActivations(rt, dequantized));
        }
        const stored = await downloadModule(rt, result);
        try {
          await context.onModule({ linear, result: stored, relativeError, tokens: statistics?.tokens ?? null });
        } finally {
          disposeModule(stored);
        }
      } finally {
        disposeModule(result);
      }
    }
  } catch (error) {
    for (const tensor of replaced.values()) tensor.dispose();
    throw error;
  } finally {
    solver.dispose();
  }
  return replaced;
}

/**
 * A weight f32 as the runtime's linears multiply it. Rounding (code - zero) * scale to 16 bits adds noise of 2^-9 of a
 * weight, where quantization to 4 bits makes some 2^-4: a thousandth of its error's power.
 */
export function forActivations(rt: NativeRuntime, weight: Tensor): Tensor {
  if (rt.activationDtype === weight.dtype) return weight;
  const rounded = rt.allocate(rt.activationDtype, weight.shape);
  ops.cast(rt, weight, rounded);
  weight.dispose();
  return rounded;
}

async function moduleError(
  rt: NativeRuntime,
  linear: LinearRef,
  weight: Tensor,
  quantized: Tensor,
  statistics: FeedStatistics,
): Promise<number> {
  const wide = rt.allocate('f32', weight.shape);
  const sums = rt.allocate('f64', [2]);
  try {
    ops.cast(rt, weight, wide);
    ops.moduleError(rt, wide, quantized, statistics.h, sums);
    const [error, norm] = (await readTyped<Float64Array>(rt, sums)) as unknown as [number, number];
    if (!Number.isFinite(error) || !Number.isFinite(norm))
      throw new LpqError('LPQ_MODULE_NUMERICS', `the weights of ${linear.name} hold NaN or infinity`, {
        hint: 'Repair the checkpoint, or leave this module out with a recipe rule.',
      });
    return norm > 0 ? error / norm : 0;
  } finally {
    wide.dispose();
    sums.dispose();
  }
}
