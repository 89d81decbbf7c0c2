import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { branchInput, settle } from './branch.js';
import { perLayerBranch, perLayerEndTensors } from './per-layer.js';
import type { BlockPlan, LinearPlan, NormPlan } from './plan.js';
import type { AltUpPlan, StreamsPlan } from './plan-altup.js';
import type { BlockState, BlockWeights, Stage } from './program.js';
import { applyLinear, applyLinearTo, applyNorm, asInput, linearTensors, normTensors, weightOf } from './weights.js';

/** Mean squares below this count as this when a stream is made as large as the first. */
const LEAST_SQUARE = 1e-5;

const stream = (i: number): string => `stream.${i}`;
const predicted = (i: number): string => `predicted.${i}`;
const LAUREL = 'laurel';

export function altUpTensors({ altUp, perLayer }: BlockPlan): [string, readonly number[]][] {
  if (!altUp) return [];
  const { routerNorm, router, predict, correct, outputScale, laurel, back = [] } = altUp;
  return [
    ...[routerNorm, laurel.norm].flatMap(normTensors),
    ...[router, predict, correct, laurel.left, laurel.right, ...back].flatMap(linearTensors),
    ...(outputScale === undefined ? [] : [[outputScale, [router.k]] as [string, number[]]]),
    ...(perLayer ? perLayerEndTensors(perLayer) : []),
  ];
}

/** All streams but the first, of embeddings h f32 [T,C]. */
export function streamsOf(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: StreamsPlan,
  h: Tensor,
): Record<string, Tensor> {
  return Object.fromEntries(plan.into.map((linear, i) => [stream(i + 1), matched(rt, weights, linear, h, h)]));
}

/** A linear of x, row by row as large as `like`. */
function matched(rt: NativeRuntime, weights: BlockWeights, linear: LinearPlan, x: Tensor, like: Tensor): Tensor {
  const y = applyLinearTo(rt, weights, linear, x);
  ops.matchRms(rt, y, like, y, { floor: LEAST_SQUARE });
  return y;
}

/** `linear` of tanh(router(norm(x) / hidden)), f32 [T, N]. */
function coefficients(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: AltUpPlan,
  linear: LinearPlan,
  x: Tensor,
): Tensor {
  const normed = applyNorm(rt, weights, plan.routerNorm, x);
  ops.scaleRows(rt, normed, undefined, normed, { factor: 1 / plan.router.k });
  const modalities = applyLinear(rt, weights, plan.router, normed);
  ops.softCap(rt, modalities, modalities, { cap: 1 });
  const y = applyLinearTo(rt, weights, linear, modalities);
  for (const tensor of [normed, modalities]) tensor.dispose();
  return y;
}

/** y += x times one of each token's coefficients. */
function addTimes(rt: NativeRuntime, x: Tensor, all: Tensor, column: number, y: Tensor): void {
  const each = rt.allocate('f32', [all.shape[0] as number, 1]);
  ops.sliceColumns(rt, all, each, { first: column });
  const scaled = rt.allocate('f32', x.shape);
  ops.scaleRows(rt, x, each, scaled);
  ops.add(rt, y, scaled, y);
  for (const tensor of [each, scaled]) tensor.dispose();
}

function copy(rt: NativeRuntime, x: Tensor): Tensor {
  const y = rt.allocate(x.dtype, x.shape);
  ops.cast(rt, x, y);
  return y;
}

/** The state that attention enters: h is what is predicted of the first stream. `state` stays as it is. */
function begun(rt: NativeRuntime, weights: BlockWeights, plan: AltUpPlan, state: BlockState): BlockState {
  const { inputs } = plan;
  const held = new Map(Object.entries(state.carried ?? {}));
  const streams = [state.h, ...Array.from({ length: inputs - 1 }, (_, i) => weightOf(held, stream(i + 1)))];
  const all = coefficients(rt, weights, plan, plan.predict, state.h);
  const made = streams.map((own, b) => {
    const sum = rt.allocate('f32', own.shape);
    ops.zero(rt, sum);
    for (const [a, from] of streams.entries()) addTimes(rt, from, all, b * inputs + a, sum);
    ops.add(rt, sum, own, sum);
    return sum;
  });
  all.dispose();
  const rest = [...held].filter(([name]) => !name.startsWith('stream.'));
  const predictions = made.map((tensor, i) => [predicted(i), tensor] as const);
  return { ...state, h: copy(rt, made[0] as Tensor), carried: Object.fromEntries([...rest, ...predictions]) };
}

/** Disposes of what begun() made. */
function undo({ inputs }: AltUpPlan, { h, carried = {} }: BlockState): void {
  for (const tensor of [h, ...Array.from({ length: inputs }, (_, i) => carried[predicted(i)])]) tensor?.dispose();
}

/** x + norm(right(left x)) of what attention reads. */
function laurelOf(
  rt: NativeRuntime,
  weights: BlockWeights,
  { laurel }: AltUpPlan,
  norm: NormPlan | undefined,
  state: BlockState,
): Tensor {
  const x = branchInput(rt, weights, norm, state);
  const low = applyLinear(rt, weights, laurel.left, x);
  const y = applyLinearTo(rt, weights, laurel.right, low);
  applyNorm(rt, weights, laurel.norm, y, true);
  ops.add(rt, y, x, y);
  for (const tensor of [x, low]) tensor.dispose();
  return y;
}

/** The state behind a block: every stream corrected by what the block computed. */
function corrected(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: BlockPlan,
  altUp: AltUpPlan,
  state: BlockState,
): BlockState {
  const { inputs, correct, outputScale } = altUp;
  const { h } = state;
  const carried = { ...state.carried };
  const predictions = Array.from({ length: inputs }, (_, i) => carried[predicted(i)] as Tensor);
  const all = coefficients(rt, weights, altUp, correct, h);
  const news = copy(rt, h);
  ops.add(rt, news, predictions[0] as Tensor, news, { scale: -1 });
  const streams = predictions.map((tensor, i) => {
    const y = copy(rt, news);
    addTimes(rt, news, all, i, y);
    ops.add(rt, y, tensor, y);
    tensor.dispose();
    delete carried[predicted(i)];
    return y;
  });
  const [first, ...others] = streams as [Tensor, ...Tensor[]];
  if (plan.perLayer) {
    const x = copy(rt, first);
    if (outputScale !== undefined) ops.scaleColumns(rt, x, weightOf(weights, outputScale), x);
    const read = asInput(rt, x);
    const y = perLayerBranch(rt, weights, plan.perLayer, state, read);
    for (const other of others) ops.add(rt, other, y, other);
    for (const tensor of [x, read, y]) tensor.dispose();
  }
  for (const tensor of [all, news, h]) tensor.dispose();
  if (altUp.back) return { ...state, h: together(rt, weights, altUp.back, first, others), carried };
  const named = others.map((tensor, i) => [stream(i + 1), tensor] as const);
  return { ...state, h: first, carried: { ...carried, ...Object.fromEntries(named) } };
}

/** The mean of the streams, the others turned back and as large as the first. */
function together(
  rt: NativeRuntime,
  weights: BlockWeights,
  back: readonly LinearPlan[],
  first: Tensor,
  others: readonly Tensor[],
): Tensor {
  const sum = copy(rt, first);
  for (const [i, linear] of back.entries()) {
    const other = others[i] as Tensor;
    const y = matched(rt, weights, linear, other, first);
    ops.add(rt, sum, y, sum);
    for (const tensor of [other, y]) tensor.dispose();
  }
  ops.scaleRows(rt, sum, undefined, sum, { factor: 1 / (back.length + 1) });
  first.dispose();
  return sum;
}

/** A block's stages (qkv, o, ..., down) with what the streams ask for before, between and behind them. */
export function alternating(stages: readonly Stage[], plan: BlockPlan, altUp: AltUpPlan): Stage[] {
  const [attention, output, ...rest] = stages as [Stage, Stage, ...Stage[]];
  const last = rest.pop() as Stage;
  return [
    {
      ...attention,
      async capture(rt, weights, state, coverage) {
        const made = begun(rt, weights, altUp, state);
        const captured = await attention.capture(rt, weights, made, coverage);
        undo(altUp, made);
        return captured;
      },
      async advance(rt, weights, state) {
        const made = begun(rt, weights, altUp, state);
        state.h.dispose();
        for (const [name, tensor] of Object.entries(state.carried ?? {}))
          if (name.startsWith('stream.')) tensor.dispose();
        const laurel = laurelOf(rt, weights, altUp, plan.attention.norm, made);
        return attention.advance(rt, weights, { ...made, carried: { ...made.carried, [LAUREL]: laurel } });
      },
    },
    {
      ...output,
      async advance(rt, weights, state) {
        const next = await output.advance(rt, weights, state);
        settle(rt, next);
        const { [LAUREL]: laurel, ...carried } = next.carried as Record<string, Tensor>;
        ops.add(rt, next.h, laurel as Tensor, next.h);
        ops.scaleRows(rt, next.h, undefined, next.h, { factor: Math.SQRT1_2 });
        laurel?.dispose();
        return { ...next, carried };
      },
    },
    ...rest,
    {
      ...last,
      async advance(rt, weights, state) {
        const next = await last.advance(rt, weights, state);
        settle(rt, next);
        return corrected(rt, weights, plan, altUp, next);
      },
    },
  ];
}
