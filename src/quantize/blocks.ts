import { type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { disposeStatistics, type FeedStatistics, sweepStatistics } from '../calibrate/statistics.js';
import { LpqError } from '../core/error.js';
import type { Block, BlockWeights, Feed, LinearRef, Stage } from '../model/program.js';
import { distribute, gatherStatistics, type Lane, shareOut, together } from './lanes.js';
import { type BlockMemory, roomFor } from './memory-plan.js';
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

/** How a block is walked: what it takes on the devices, and what happens on the way. */
export interface Walk {
  readonly memory: BlockMemory;
  /** Bytes of weights that stay on a device meanwhile. */
  readonly held: number;
  /** The first sweep is over: no stream needs the weights of the block before any more. */
  readonly onFirstSweep: () => Promise<void>;
}

/**
 * Quantizes one block stage by stage (true-sequential): every stage's statistics are taken with all stages before it
 * already quantized. The streams follow lazily: they pass the last stage in the first sweep of the next block. Returns the
 * dequantized weights, which the streams need until then.
 */
export function quantizeBlock(
  context: BlockContext,
  block: Block,
  lanes: readonly Lane[],
  walk: Walk,
): Promise<Tensor[]> {
  return walkBlock(context, block, lanes, walk, async (wanted, statistics, made) => {
    const shares = shareOut(wanted, lanes.length);
    const solved = await together(
      lanes.map(async (lane, i) => {
        const replaced = new Map<string, Tensor>();
        for (const feed of shares[i] as Feed[])
          for (const [name, tensor] of await solveFeed(context, lanes, lane, feed, statistics)) {
            replaced.set(name, tensor);
            made.push(tensor);
          }
        return replaced;
      }),
    );
    for (const [i, replaced] of solved.entries()) made.push(...(await distribute(lanes, lanes[i] as Lane, replaced)));
  });
}

/**
 * Takes the streams through a block whose quantized weights are in every lane's `current` already, exactly as
 * quantizeBlock() would have, sweep by sweep.
 */
export async function replayBlock(
  context: BlockContext,
  block: Block,
  lanes: readonly Lane[],
  walk: Walk,
): Promise<void> {
  await walkBlock(context, block, lanes, walk, undefined);
}

type Solve = (
  wanted: readonly Feed[],
  statistics: readonly ReadonlyMap<string, FeedStatistics>[],
  made: Tensor[],
) => Promise<void>;

async function walkBlock(
  context: BlockContext,
  block: Block,
  lanes: readonly Lane[],
  walk: Walk,
  solve: Solve | undefined,
): Promise<Tensor[]> {
  const made: Tensor[] = [];
  try {
    for (const [index, stage] of block.stages.entries()) {
      if (solve) context.onStage(block, stage);
      const wanted = stage.feeds.filter(({ linears }) => linears.some(({ name }) => context.schemes.has(name)));
      if (index === 0 || wanted.length > 0) {
        const ids = new Set(solve ? wanted.map(({ id }) => id) : []);
        const statistics = await together(
          lanes.map(({ rt, streams, current, source }) => {
            const room = roomFor(rt, walk.memory, block, index, walk.held);
            return sweepStatistics(rt, streams, { stage, quantized: current, original: source }, ids, room);
          }),
        );
        try {
          if (index === 0) await walk.onFirstSweep();
          if (solve && wanted.length > 0) await solve(wanted, statistics, made);
        } finally {
          for (const each of statistics) disposeStatistics(each);
        }
      }
      for (const { streams, current, source } of lanes) {
        streams.quantized.follow({ stage, weights: current });
        streams.original?.follow({ stage, weights: source });
      }
    }
  } catch (error) {
    for (const tensor of made) tensor.dispose();
    throw error;
  }
  return made;
}

/** Quantizes one feed on one lane, with the statistics of all of them. */
async function solveFeed(
  context: BlockContext,
  lanes: readonly Lane[],
  lane: Lane,
  feed: Feed,
  statistics: readonly ReadonlyMap<string, FeedStatistics>[],
): Promise<Map<string, Tensor>> {
  const { rt, source } = lane;
  if (lanes.length === 1) return quantizeFeed(context, rt, feed, source, statistics[0]?.get(feed.id));
  const gathered = await gatherStatistics(statistics, feed.id, rt);
  try {
    return await quantizeFeed(context, rt, feed, source, gathered);
  } finally {
    disposeStatistics(new Map([[feed.id, gathered]]));
  }
}

/** Fewer rows than this fraction of K say too little of a K x K Hessian. */
const FEW_ROWS = 1 / 8;

/** Quantizes the linears of a feed that have a scheme; returns their dequantized weights by full name. */
export async function quantizeFeed(
  context: BlockContext,
  rt: NativeRuntime,
  feed: Feed,
  weights: BlockWeights,
  statistics: FeedStatistics | undefined,
): Promise<Map<string, Tensor>> {
  const k = (feed.linears[0] as LinearRef).k;
  const few = statistics !== undefined && statistics.tokens < Math.ceil(k * FEW_ROWS);
  const quantizer = few ? context.fallback : context.quantizer;
  const solver = quantizer.feed(rt, statistics);
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
