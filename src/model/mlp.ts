import type { Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { GatedMlpPlan } from './plan.js';
import type { Stage } from './program.js';
import { applyLinear, applyNorm, linearRef, linearTensors, normTensors } from './weights.js';

export function gatedTensors(plan: GatedMlpPlan): [string, readonly number[]][] {
  return [...normTensors(plan.norm), ...[plan.gate, plan.up, plan.down].flatMap(linearTensors)];
}

/** Pre-norm gated MLP as two stages: `gate_up` up to act(gate) * up, `down` back into the residual stream. */
export function gatedStages(plan: GatedMlpPlan): Stage[] {
  const gateUp: Stage = {
    id: 'gate_up',
    feeds: [{ id: 'gate_up', linears: [linearRef(plan.gate), linearRef(plan.up)] }],
    async capture(rt, weights, state) {
      return new Map([['gate_up', applyNorm(rt, weights, plan.norm, state.h)]]);
    },
    async advance(rt, weights, state) {
      const x = applyNorm(rt, weights, plan.norm, state.h);
      const gate = applyLinear(rt, weights, plan.gate, x, undefined, rt.activationDtype);
      const up = applyLinear(rt, weights, plan.up, x, undefined, rt.activationDtype);
      ops.gatedActivation(rt, gate, up, gate, { act: plan.activation });
      x.dispose();
      up.dispose();
      return { ...state, aux: { inner: gate } };
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
      applyLinear(rt, weights, plan.down, inner, { y: state.h, accumulate: true });
      inner.dispose();
      return { ...state, aux };
    },
  };
  return [gateUp, down];
}
