import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { applyGate } from './gate.js';
import { halves } from './mlp.js';
import type { LinearPlan } from './plan.js';
import { expertInto, type GatePlan, type SharedExpertPlan } from './plan-experts.js';
import type { BlockWeights, Feed } from './program.js';
import { applyLinear, linearRef, linearTensors } from './weights.js';

export function sharedTensors(plan: SharedExpertPlan | undefined): [string, readonly number[]][] {
  if (!plan) return [];
  const { down, outputGate } = plan;
  return [...expertInto(plan), down, ...(outputGate ? [outputGate] : [])].flatMap(linearTensors);
}

/** What the first stage of a mixture leaves for the second, beside the experts' own. */
export interface SharedInner {
  /** [T, I]. */
  readonly sharedInner: Tensor;
  /** Where the output has a gate: its sigmoids f32 [T,1]. */
  readonly sharedShares?: Tensor;
}

/** The MLP that every token goes through beside its experts, as steps of the mixture's two stages. */
export interface SharedExpert {
  readonly gateUp: Feed;
  readonly down: Feed;
  /** From the normalised input [T,C], which stays the caller's. */
  inner(rt: NativeRuntime, weights: BlockWeights, x: Tensor): Record<string, Tensor>;
  /** Adds the output to h f32 [T,C]. */
  addTo(rt: NativeRuntime, weights: BlockWeights, from: SharedInner, h: Tensor): void;
}

/** What gate and up make of x [T,C], [T,I] each, or up alone. */
function gateAndUp(rt: NativeRuntime, weights: BlockWeights, plan: SharedExpertPlan, x: Tensor): [Tensor, Tensor?] {
  const { gate, up, gateUp } = plan;
  const apply = (linear: LinearPlan) => applyLinear(rt, weights, linear, x, undefined, rt.activationDtype);
  if (gateUp) return halves(rt, apply(gateUp));
  return gate ? [apply(gate), apply(up)] : [apply(up)];
}

export function sharedExpert(plan: SharedExpertPlan, act: GatePlan): SharedExpert {
  const { down, outputGate, multiplier } = plan;

  /** The sigmoid of each token's gate: its share where there is one expert to choose from. */
  const shares = (rt: NativeRuntime, weights: BlockWeights, x: Tensor): Tensor | undefined => {
    if (!outputGate) return undefined;
    const scores = applyLinear(rt, weights, outputGate, x);
    const share = rt.allocate('f32', scores.shape);
    const index = rt.allocate('i32', scores.shape);
    ops.routeTopK(rt, scores, index, share, { k: 1, normalize: false, sigmoid: true });
    for (const tensor of [scores, index]) tensor.dispose();
    return share;
  };

  return {
    gateUp: { id: 'shared.gate_up', linears: expertInto(plan).map((linear) => linearRef(linear)) },
    down: { id: 'shared.down', linears: [linearRef(down)] },
    inner(rt, weights, x) {
      const [sharedInner, other] = gateAndUp(rt, weights, plan, x);
      applyGate(rt, act, sharedInner, other ?? sharedInner);
      other?.dispose();
      const sharedShares = shares(rt, weights, x);
      return { sharedInner, ...(sharedShares && { sharedShares }) };
    },
    addTo(rt, weights, { sharedInner, sharedShares }, h) {
      if (!sharedShares && multiplier !== 1) {
        const out = applyLinear(rt, weights, down, sharedInner);
        ops.add(rt, h, out, h, { scale: multiplier });
        out.dispose();
        return;
      }
      if (!sharedShares) {
        applyLinear(rt, weights, down, sharedInner, { y: h, accumulate: true });
        return;
      }
      const out = applyLinear(rt, weights, down, sharedInner);
      const [tokens] = out.shape as [number, number];
      // Every token's row, in order: all of them go to the one expert.
      const zeros = rt.allocate('i32', [tokens, 1]);
      const rows = rt.allocate('i32', [tokens]);
      const offsets = rt.allocate('i32', [2]);
      ops.zero(rt, zeros);
      ops.groupByExpert(rt, zeros, rows, offsets, { experts: 1 });
      ops.scatterAddRows(rt, out, rows, sharedShares, h, { divide: 1 });
      for (const tensor of [out, zeros, rows, offsets]) tensor.dispose();
    },
  };
}
