import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { ExpertGating } from '../../native/packed-ops.js';
import type { GatePlan } from './plan-experts.js';

/** gate [.., I], what up makes where there is no gate, becomes the hidden activation of an expert. */
export function applyGate(rt: NativeRuntime, plan: GatePlan, gate: Tensor, up: Tensor): void {
  if (plan.kind === 'plain') ops.activation(rt, gate, gate, { act: plan.activation });
  else if (plan.kind === 'clamped') ops.clampedSwiglu(rt, gate, up, gate, { alpha: plan.alpha, limit: plan.limit });
  else if (plan.kind === 'limited') ops.limitedGate(rt, gate, up, gate, { limit: plan.limit });
  else ops.gatedActivation(rt, gate, up, gate, { act: plan.activation });
}

/** The same as a product of experts makes it out of its sums. */
export function gatingOf(plan: GatePlan): ExpertGating {
  if (plan.kind === 'clamped') return { gate: 'clamped', alpha: plan.alpha, limit: plan.limit };
  if (plan.kind === 'limited') return { gate: 'silu', limit: plan.limit };
  return { gate: plan.activation };
}
