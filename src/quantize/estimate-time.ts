import type { NativeRuntime } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { BlockPlan } from '../model/plan.js';
import type { Block, ModelGraph } from '../model/program.js';
import type { CalibrationSize } from './estimate.js';

/** Sizes of the product that the rate is taken of, and how often it runs. */
const [ROWS, WIDTH, RUNS] = [512, 2048, 4];

/**
 * Floating-point operations of a run: of activations 2 N K a token through each linear, K^2 a token of each feed for second moments (one
 * half of a symmetric product), and 2 K^3 + 2 N K^2 to factor them and to solve. Attention, reading and writing are not in it. An
 * expert sees its share of the tokens.
 */
export function operationsOf(
  graph: ModelGraph,
  plans: readonly BlockPlan[],
  calibration: CalibrationSize | undefined,
): number {
  if (!calibration) return 0;
  const { tokens, original, kind } = calibration;
  const passes = kind === 'statistics' ? 0 : original ? 2 : 1;
  let sum = 0;
  for (const { k, rows, share } of feedsOf(graph, plans))
    sum += passes * tokens * share * (2 * rows * k + k * k) + 2 * k ** 3 + 2 * rows * k * k;
  return sum;
}

/** Those of one pass through the linears of all blocks. */
export function passOperations(graph: ModelGraph, plans: readonly BlockPlan[], tokens: number): number {
  let sum = 0;
  for (const { k, rows, share } of feedsOf(graph, plans)) sum += 2 * tokens * share * rows * k;
  return sum;
}

/** Of a token through the linears of one block. */
export function blockProducts(block: Block, plan: BlockPlan | undefined): number {
  let sum = 0;
  for (const { k, rows, share } of feedsIn(block, plan)) sum += 2 * share * rows * k;
  return sum;
}

/** Sizes of every input of linears, and the share of the tokens that it sees. */
function* feedsOf(graph: ModelGraph, plans: readonly BlockPlan[]): Generator<FeedSize> {
  for (const [index, block] of graph.blocks.entries()) yield* feedsIn(block, plans[index]);
}

interface FeedSize {
  readonly k: number;
  readonly rows: number;
  readonly share: number;
}

function* feedsIn(block: Block, plan: BlockPlan | undefined): Generator<FeedSize> {
  const mlp = plan?.mlp;
  const share = mlp?.kind === 'experts' ? mlp.routing.perToken / mlp.router.n : 1;
  for (const { linears } of block.stages.flatMap((stage) => stage.feeds))
    yield {
      k: linears[0]?.k ?? 0,
      rows: linears.reduce((all, { n }) => all + n, 0),
      share: linears[0]?.expert === undefined ? 1 : share,
    };
}

/** Floating-point operations a second of the products that linears are, on this device, now. */
export async function rateOf(rt: NativeRuntime): Promise<number> {
  const tensors = [
    rt.allocate(rt.activationDtype, [ROWS, WIDTH]),
    rt.allocate(rt.activationDtype, [WIDTH, WIDTH]),
    rt.allocate('f32', [ROWS, WIDTH]),
  ] as const;
  const [x, w, y] = tensors;
  for (const tensor of [x, w]) ops.zero(rt, tensor);
  const run = async (): Promise<number> => {
    const started = performance.now();
    ops.linear(rt, x, w, undefined, y);
    await rt.sync();
    return (performance.now() - started) / 1000;
  };
  let best = Number.POSITIVE_INFINITY;
  for (let i = 0; i <= RUNS; i++) best = Math.min(best, await run());
  for (const tensor of tensors) tensor.dispose();
  return (2 * ROWS * WIDTH * WIDTH) / best;
}
