import { type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { branchInput } from './branch.js';
import type { ExpertPlan, ExpertsPlan, GatePlan } from './plan-experts.js';
import type { BlockState, BlockWeights, Feed, Stage } from './program.js';
import { type SharedInner, sharedExpert, sharedTensors } from './shared-expert.js';
import { applyLinear, linearRef, linearTensors, normTensors, weightOf } from './weights.js';

export function expertsTensors(plan: ExpertsPlan): [string, readonly number[]][] {
  const { bias } = plan.routing;
  return [
    ...normTensors(plan.norm),
    ...linearTensors(plan.router),
    ...(bias === undefined ? [] : [[bias, [plan.experts.length]] as [string, readonly number[]]]),
    ...plan.experts.flatMap(({ gate, up, down }) => [gate, up, down].flatMap(linearTensors)),
    ...sharedTensors(plan.shared),
  ];
}

/** Where tokens go: rows of all experts stand one after another, expert e's at offsets[e] .. offsets[e+1]. */
interface Routing {
  /** [T*k, C]: the normalised input of each routed row. */
  readonly x: Tensor;
  /** I32 [T*k]: flat index t*k+j of each row, f32 [T,k]: its weights, I32 [E+1]. */
  readonly rows: Tensor;
  readonly weights: Tensor;
  readonly offsets: Tensor;
}

type Routed = Omit<Routing, 'x'> & { readonly inner: Tensor };

/**
 * A pre-norm mixture of experts as two stages: `experts.gate_up` up to every routed row's hidden activation, `experts.down`
 * back into the residual stream. Each expert is a feed of its own, with its routed rows only; a shared expert is one that
 * reads every token. The router is no feed: it is small, and an error in it sends tokens to other experts.
 */
export function expertsStages(plan: ExpertsPlan): Stage[] {
  const { router, routing, intermediate } = plan;
  const { perToken } = routing;
  const count = plan.experts.length;
  const hidden = router.k;
  const shared = plan.shared && sharedExpert(plan.shared, plan.gate);
  const feed = (kind: 'gate_up' | 'down'): Feed[] =>
    plan.experts.map(({ gate, up, down }, e) => ({
      id: `experts.${e}.${kind}`,
      linears: (kind === 'down' ? [down] : [gate, up]).map((linear) => linearRef(linear, e)),
    }));

  /** `normed` f32|16 bits [T,C] stays the caller's. */
  const route = (rt: NativeRuntime, weights: BlockWeights, state: BlockState, normed: Tensor): Routing => {
    const { tokens } = state.batch;
    const scores = applyLinear(rt, weights, router, normed);
    const indices = rt.allocate('i32', [tokens, perToken]);
    const shares = rt.allocate('f32', [tokens, perToken]);
    const rows = rt.allocate('i32', [tokens * perToken]);
    const offsets = rt.allocate('i32', [count + 1]);
    const x = rt.allocate(normed.dtype, [tokens * perToken, hidden]);
    const { sigmoid, normalize, scale, groups, topGroups, topTwo } = routing;
    const bias = routing.bias === undefined ? undefined : weightOf(weights, routing.bias);
    const choice = { k: perToken, sigmoid, normalize, scale, groups, topGroups, topTwo };
    ops.routeTopK(rt, scores, indices, shares, choice, bias);
    ops.groupByExpert(rt, indices, rows, offsets, { experts: count });
    ops.gatherRows(rt, normed, rows, x, { divide: perToken });
    for (const tensor of [scores, indices]) tensor.dispose();
    return { x, rows, weights: shares, offsets };
  };

  /** Calls `each` with a view of the rows of every expert in x [T*k, width]; the callee disposes of it. */
  const split = async (
    rt: NativeRuntime,
    x: Tensor,
    offsets: Tensor,
    each: (expert: number, rows: Tensor, first: number) => void,
  ): Promise<void> => {
    // How many rows each expert has is needed here, before anything can be enqueued for it.
    const bounds = await readTyped<Int32Array>(rt, offsets);
    const width = x.shape[1] as number;
    for (let e = 0; e < count; e++) {
      const first = bounds[e] as number;
      each(e, x.view([(bounds[e + 1] as number) - first, width], first * width), first);
    }
  };

  const gateUp: Stage = {
    id: 'experts.gate_up',
    feeds: [...feed('gate_up'), ...(shared ? [shared.gateUp] : [])],
    async capture(rt, weights, state) {
      const normed = branchInput(rt, weights, plan.norm, state);
      const routed = route(rt, weights, state, normed);
      const captured = new Map<string, Tensor>();
      await split(rt, routed.x, routed.offsets, (e, rows) => captured.set(`experts.${e}.gate_up`, rows));
      for (const tensor of Object.values(routed)) tensor.dispose();
      if (shared) captured.set(shared.gateUp.id, normed);
      else normed.dispose();
      return captured;
    },
    async advance(rt, weights, state) {
      const normed = branchInput(rt, weights, plan.norm, state);
      const { x, ...routed } = route(rt, weights, state, normed);
      const beside = shared ? shared.inner(rt, weights, normed) : {};
      normed.dispose();
      const gate = rt.allocate(rt.activationDtype, [x.shape[0] as number, intermediate]);
      const up = rt.allocate(gate.dtype, gate.shape);
      await split(rt, x, routed.offsets, (e, rows, first) => {
        const expert = plan.experts[e] as ExpertPlan;
        for (const [linear, whole] of [[expert.gate, gate] as const, [expert.up, up] as const]) {
          if (rows.shape[0] === 0) continue;
          const y = whole.view([rows.shape[0] as number, intermediate], first * intermediate);
          applyLinear(rt, weights, linear, rows, { y, accumulate: false });
          y.dispose();
        }
        rows.dispose();
      });
      applyGate(rt, plan.gate, gate, up);
      x.dispose();
      up.dispose();
      return { ...state, aux: { ...routed, inner: gate, ...beside } };
    },
  };

  const down: Stage = {
    id: 'experts.down',
    feeds: [...feed('down'), ...(shared ? [shared.down] : [])],
    async capture(rt, _weights, state) {
      const { inner, offsets } = state.aux as unknown as Routed;
      const captured = new Map<string, Tensor>();
      await split(rt, inner, offsets, (e, rows) => captured.set(`experts.${e}.down`, rows));
      if (shared) {
        const { sharedInner } = state.aux as unknown as SharedInner;
        captured.set(shared.down.id, sharedInner.view(sharedInner.shape));
      }
      return captured;
    },
    async advance(rt, weights, state) {
      const routed = state.aux as unknown as Routed;
      const out = rt.allocate('f32', [routed.inner.shape[0] as number, hidden]);
      await split(rt, routed.inner, routed.offsets, (e, rows, first) => {
        if (rows.shape[0] !== 0) {
          const y = out.view([rows.shape[0] as number, hidden], first * hidden);
          applyLinear(rt, weights, (plan.experts[e] as ExpertPlan).down, rows, { y, accumulate: false });
          y.dispose();
        }
        rows.dispose();
      });
      ops.scatterAddRows(rt, out, routed.rows, routed.weights, state.h, { divide: perToken });
      out.dispose();
      shared?.addTo(rt, weights, state.aux as unknown as SharedInner, state.h);
      for (const tensor of Object.values(state.aux)) tensor.dispose();
      return { ...state, aux: {} };
    },
  };
  return [gateUp, down];
}

/** gate [.., I] becomes the hidden activation. */
export function applyGate(rt: NativeRuntime, plan: GatePlan, gate: Tensor, up: Tensor): void {
  if (plan.kind === 'clamped') ops.clampedSwiglu(rt, gate, up, gate, { alpha: plan.alpha, limit: plan.limit });
  else ops.gatedActivation(rt, gate, up, gate, { act: plan.activation });
}
