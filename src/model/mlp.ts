import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { PARALLEL_INPUT } from './attention.js';
import { addBranch, branchInput, branchTensors } from './branch.js';
import { codesBeside } from './kernels/token-codes.js';
import type { LinearPlan, MlpPlan } from './plan.js';
import type { XieluPlan } from './plan-mlp.js';
import type { BlockState, BlockWeights, Stage } from './program.js';
import { applyLinear, codesOf, linearRef, linearTensors, weightOf } from './weights.js';

/** The linears of the first stage, which read one activation. */
function firstLinears(plan: MlpPlan): LinearPlan[] {
  if (plan.kind === 'fused') return [plan.gateUp];
  return plan.kind === 'plain' ? [plan.up] : [plan.gate, plan.up];
}

export function mlpTensors(plan: MlpPlan): [string, readonly number[]][] {
  const learned = typeof plan.activation === 'string' ? [] : xieluShapes(plan.activation);
  return [...branchTensors(plan), ...[...firstLinears(plan), plan.down].flatMap(linearTensors), ...learned];
}

function xieluShapes({ positive, negative, beta, eps }: XieluPlan): [string, readonly number[]][] {
  return [
    [positive, [1]],
    [negative, [1]],
    [beta, []],
    [eps, []],
  ];
}

export function xieluTensors(weights: BlockWeights, { positive, negative, beta, eps }: XieluPlan) {
  const of = (name: string): Tensor => weightOf(weights, name);
  return { positive: of(positive), negative: of(negative), beta: of(beta), eps: of(eps) };
}

/** The one linear that reads an MLP's input, where there is one. */
function firstReader(weights: BlockWeights, plan: MlpPlan): string | undefined {
  const linears = firstLinears(plan);
  const joined = weights.joined?.get(linears[0]!.name);
  return joined?.name ?? (linears.length === 1 ? linears[0]!.name : undefined);
}

/** The two halves [T, I] of the columns of x [T, 2 I], which is let go of. */
export function halves(rt: NativeRuntime, x: Tensor): [Tensor, Tensor] {
  const [tokens, width] = x.shape as [number, number];
  const half = (first: number): Tensor => {
    const y = rt.allocate(x.dtype, [tokens, width / 2]);
    ops.sliceColumns(rt, x, y, { first });
    return y;
  };
  const both: [Tensor, Tensor] = [half(0), half(width / 2)];
  x.dispose();
  return both;
}

/** What down reads, of x [T,C]: a new tensor [T, K of down]. */
function inner(rt: NativeRuntime, weights: BlockWeights, plan: MlpPlan, x: Tensor): Tensor {
  const apply = (linear: LinearPlan) => applyLinear(rt, weights, linear, x, undefined, rt.activationDtype);
  if (plan.kind === 'plain') {
    const act = plan.activation;
    const y = apply(plan.up);
    if (typeof act === 'string') ops.activation(rt, y, y, { act });
    else ops.xielu(rt, y, xieluTensors(weights, act), y);
    return y;
  }
  const act = plan.activation;
  const joined = plan.kind === 'gated' ? weights.joined?.get(plan.gate.name) : plan.gateUp;
  if (plan.kind === 'gated' && !joined) {
    const [gate, up] = [apply(plan.gate), apply(plan.up)];
    if (plan.gateScale !== undefined) ops.scaleRows(rt, gate, undefined, gate, { factor: plan.gateScale });
    if (plan.deviations !== undefined) ops.gaussianTopK(rt, gate, gate, { deviations: plan.deviations });
    if (plan.clamped) ops.clampedSwiglu(rt, gate, up, gate, plan.clamped);
    else ops.gatedActivation(rt, gate, up, gate, { act });
    up.dispose();
    return gate;
  }
  const whole = apply(joined as LinearPlan);
  if (plan.kind === 'gated' && plan.gateScale !== undefined)
    ops.scaleRows(rt, whole, undefined, whole, { factor: plan.gateScale, first: 0, width: plan.gate.n });
  if (plan.kind === 'gated' && plan.deviations !== undefined) {
    const gate = rt.allocate(whole.dtype, [x.shape[0] as number, plan.gate.n]);
    ops.sliceColumns(rt, whole, gate, { first: 0 });
    ops.gaussianTopK(rt, gate, gate, { deviations: plan.deviations });
    ops.placeColumns(rt, gate, whole, { first: 0 });
    gate.dispose();
  }
  if (plan.clamped) {
    const [gate, up] = halves(rt, whole);
    ops.clampedSwiglu(rt, gate, up, gate, plan.clamped);
    up.dispose();
    return gate;
  }
  const y = rt.allocate(whole.dtype, [x.shape[0] as number, plan.down.k]);
  const codes = codesBeside(rt, y, codesOf(weights, plan.down.name));
  ops.gatedActivation(rt, whole, whole, y, { act, first: 0, upFirst: plan.down.k }, codes);
  whole.dispose();
  return y;
}

/**
 * An MLP as two stages: the first (`gate_up`, or `up` of a plain one) to what down reads, `down` back into the residual
 * stream. `parallel`: its input was made before attention changed the stream.
 */
export function mlpStages(plan: MlpPlan, parallel = false): Stage[] {
  const id = plan.kind === 'plain' ? 'up' : 'gate_up';
  const input = (rt: NativeRuntime, weights: BlockWeights, state: BlockState): Tensor => {
    if (!parallel) return branchInput(rt, weights, plan.norm, state, firstReader(weights, plan));
    const made = state.aux[PARALLEL_INPUT] as Tensor;
    return made.view(made.shape);
  };

  const first: Stage = {
    id,
    feeds: [{ id, linears: firstLinears(plan).map((linear) => linearRef(linear)) }],
    async capture(rt, weights, state) {
      return new Map([[id, input(rt, weights, state)]]);
    },
    async advance(rt, weights, state) {
      const x = input(rt, weights, state);
      const made = inner(rt, weights, plan, x);
      for (const tensor of [x, ...Object.values(state.aux)]) tensor.dispose();
      return { ...state, aux: { inner: made } };
    },
  };

  const down: Stage = {
    id: 'down',
    feeds: [{ id: 'down', linears: [linearRef(plan.down)] }],
    async capture(_rt, _weights, state) {
      const { inner } = state.aux as { inner: Tensor };
      return new Map([['down', inner.view(inner.shape)]]);
    },
    async advance(rt, weights, state) {
      const { inner, ...aux } = state.aux as { inner: Tensor };
      const next = { ...state, aux };
      addBranch(rt, weights, plan, plan.down, inner, next);
      inner.dispose();
      return next;
    },
  };
  return [first, down];
}
