import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { settle } from './branch.js';
import type { HyperMix, HyperPlan } from './plan-hyper.js';
import type { BlockState, BlockWeights, Stage } from './program.js';
import { weightOf } from './weights.js';

const STREAMS = 'streams';
const POST = 'post';
const MIX = 'mix';

export function hyperTensors(plan: HyperPlan): [string, readonly number[]][] {
  const { streams, hidden, attention, mlp, head } = plan;
  return [attention, mlp, ...(head ? [head] : [])].flatMap(({ linear, base, scale, rows }) => [
    [linear, [rows, streams * hidden]] as [string, number[]],
    [base, [rows]] as [string, number[]],
    [scale, [rows === streams ? 1 : 3]] as [string, number[]],
  ]);
}

/** As many copies of embeddings h f32 [T,C] side by side. */
export function firstStreams(rt: NativeRuntime, { streams }: Pick<HyperPlan, 'streams'>, h: Tensor): Tensor {
  const [tokens, width] = h.shape as [number, number];
  const all = rt.allocate('f32', [tokens, streams * width]);
  for (let i = 0; i < streams; i++) ops.placeColumns(rt, h, all, { first: i * width });
  return all;
}

const streamsOf = ({ carried }: BlockState): Tensor => weightOf(new Map(Object.entries(carried ?? {})), STREAMS);

interface Weighed {
  readonly pre: Tensor;
  readonly post?: Tensor;
  readonly mix?: Tensor;
}

/** The weights of streams x [T, N C]. */
function weigh(rt: NativeRuntime, weights: BlockWeights, plan: HyperPlan, by: HyperMix, x: Tensor): Weighed {
  const { streams, iterations, epsilon: eps, normEpsilon } = plan;
  const tokens = x.shape[0] as number;
  const normed = rt.allocate('f32', x.shape);
  ops.rmsnorm(rt, x, undefined, normed, { eps: normEpsilon });
  const w = rt.allocate('f32', [tokens, by.rows]);
  ops.linear(rt, normed, weightOf(weights, by.linear), undefined, w);
  const of = (width: number): Tensor => rt.allocate('f32', [tokens, width]);
  const made: Weighed = {
    pre: of(streams),
    ...(by.rows > streams && { post: of(streams), mix: of(streams * streams) }),
  };
  const [base, scale] = [weightOf(weights, by.base), weightOf(weights, by.scale)];
  ops.hyperWeights(rt, { w, base, scale }, made, { streams, iterations, eps });
  for (const tensor of [normed, w]) tensor.dispose();
  return made;
}

function collapsed(rt: NativeRuntime, { hidden }: HyperPlan, x: Tensor, pre: Tensor): Tensor {
  const h = rt.allocate('f32', [x.shape[0] as number, hidden]);
  ops.hyperCollapse(rt, x, pre, h);
  pre.dispose();
  return h;
}

/** The state that a branch enters: h is what the streams become. `state` stays as it is. */
function begun(rt: NativeRuntime, weights: BlockWeights, plan: HyperPlan, by: HyperMix, state: BlockState): BlockState {
  const x = streamsOf(state);
  const { pre, post, mix } = weigh(rt, weights, plan, by, x);
  const h = collapsed(rt, plan, x, pre);
  return { ...state, h, carried: { ...state.carried, [POST]: post!, [MIX]: mix! } };
}

/** The state behind a branch: the streams with what it made. */
function ended(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: HyperPlan,
  head: HyperMix | undefined,
  { h: made, carried = {}, ...state }: BlockState,
): BlockState {
  const { [STREAMS]: before, [POST]: post, [MIX]: mix, ...rest } = carried as Record<string, Tensor>;
  const x = rt.allocate('f32', before!.shape);
  ops.hyperExpand(rt, before!, { made, post: post!, mix: mix! }, x);
  for (const tensor of [made, before!, post!, mix!]) tensor.dispose();
  if (head) {
    const h = collapsed(rt, plan, x, weigh(rt, weights, plan, head, x).pre);
    x.dispose();
    return { ...state, h, carried: rest };
  }
  const h = rt.allocate('f32', [x.shape[0] as number, plan.hidden]);
  ops.sliceColumns(rt, x, h, { first: 0 });
  return { ...state, h, carried: { ...rest, [STREAMS]: x } };
}

function branch(stages: readonly Stage[], plan: HyperPlan, by: HyperMix, head?: HyperMix): Stage[] {
  const opened = stages.map((stage, i): Stage => {
    if (i > 0) return stage;
    return {
      ...stage,
      async capture(rt, weights, state, coverage) {
        const made = begun(rt, weights, plan, by, state);
        const captured = await stage.capture(rt, weights, made, coverage);
        for (const tensor of [made.h, made.carried![POST]!, made.carried![MIX]!]) tensor.dispose();
        return captured;
      },
      async advance(rt, weights, state) {
        const made = begun(rt, weights, plan, by, state);
        state.h.dispose();
        return stage.advance(rt, weights, made);
      },
    };
  });
  const last = opened.pop() as Stage;
  return [
    ...opened,
    {
      ...last,
      async advance(rt, weights, state) {
        // What the branch adds to nothing is what it makes.
        const h = rt.allocate('f32', state.h.shape);
        ops.zero(rt, h);
        const next = await last.advance(rt, weights, { ...state, h });
        settle(rt, next);
        state.h.dispose();
        return ended(rt, weights, plan, head, next);
      },
    },
  ];
}

/** A block's stages, the two last of which are the MLP's, around which streams become one. */
export function hyperStages(stages: readonly Stage[], plan: HyperPlan): Stage[] {
  return [...branch(stages.slice(0, -2), plan, plan.attention), ...branch(stages.slice(-2), plan, plan.mlp, plan.head)];
}
