import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { branchInput } from './branch.js';
import type { ExpertsPlan } from './plan-experts.js';
import type { ExpertsApartPlan } from './plan-experts-apart.js';
import type { BlockState, BlockWeights } from './program.js';
import type { SharedExpert, SharedInner } from './shared-expert.js';
import { applyLinear, applyNorm, normTensors, weightOf } from './weights.js';

export function apartTensors(plan: ExpertsApartPlan | undefined, experts: number): [string, readonly number[]][] {
  if (!plan) return [];
  const { norm, postNorm, sharedPostNorm, sumNorm, routerNorm, expertScale } = plan;
  return [...[norm, postNorm, sharedPostNorm, sumNorm, routerNorm].flatMap(normTensors), [expertScale, [experts]]];
}

/** What a mixture reads of the residual stream, [T,C] each; one tensor for all where nothing stands apart. */
export interface ExpertInputs {
  readonly experts: Tensor;
  readonly shared: Tensor;
  readonly router: Tensor;
}

export function expertInputs(
  rt: NativeRuntime,
  weights: BlockWeights,
  { norm, apart, latent }: ExpertsPlan,
  state: BlockState,
): ExpertInputs {
  const shared = branchInput(rt, weights, norm, state);
  if (latent) {
    const experts = applyLinear(rt, weights, latent.into, shared, undefined, rt.activationDtype);
    return { experts, shared, router: shared };
  }
  if (!apart) return { experts: shared, shared, router: shared };
  const of = (own: typeof norm): Tensor => applyNorm(rt, weights, own, state.h);
  return { experts: of(apart.norm), shared, router: of(apart.routerNorm) };
}

export function disposeInputs(inputs: ExpertInputs): void {
  for (const tensor of new Set<Tensor>(Object.values(inputs))) tensor.dispose();
}

/** The router's logits f32 [T,E]. */
export function routerScores(
  rt: NativeRuntime,
  weights: BlockWeights,
  { router, apart }: ExpertsPlan,
  x: Tensor,
): Tensor {
  const scores = applyLinear(rt, weights, router, x);
  if (apart) ops.scaleRows(rt, scores, undefined, scores, { factor: 1 / Math.sqrt(router.k) });
  return scores;
}

/** Multiplies the weights f32 [T,k] of chosen experts, I32 [T,k], by what each expert has for it. */
export function scaleChosen(
  rt: NativeRuntime,
  weights: BlockWeights,
  { apart, experts }: ExpertsPlan,
  chosen: Tensor,
  shares: Tensor,
): void {
  if (!apart) return;
  const count = chosen.shape.reduce((a, b) => a * b, 1);
  const [ids, flat] = [chosen.view([count]), shares.view([count, 1])];
  const table = weightOf(weights, apart.expertScale).view([experts.length, 1]);
  const each = rt.allocate('f32', [count, 1]);
  ops.embedding(rt, ids, table, each);
  ops.scaleRows(rt, flat, each, flat);
  for (const tensor of [ids, flat, table, each]) tensor.dispose();
}

/** Adds to h what both branches make: `addExperts` and the MLP each add theirs to the tensor that they are given. */
export function addBranches(
  rt: NativeRuntime,
  weights: BlockWeights,
  { apart, shared: mlp }: ExpertsPlan,
  shared: SharedExpert | undefined,
  state: BlockState,
  addExperts: (to: Tensor) => void,
): void {
  const { h } = state;
  const beside = state.aux as unknown as SharedInner;
  if (!apart || !mlp) {
    addExperts(h);
    shared?.addTo(rt, weights, beside, h);
    return;
  }
  const [experts, dense] = [0, 1].map(() => {
    const y = rt.allocate('f32', h.shape);
    ops.zero(rt, y);
    return y;
  }) as [Tensor, Tensor];
  addExperts(experts);
  applyNorm(rt, weights, apart.postNorm, experts, true);
  shared?.addTo(rt, weights, beside, dense);
  applyNorm(rt, weights, apart.sharedPostNorm, dense, true);
  ops.add(rt, dense, experts, dense);
  applyNorm(rt, weights, apart.sumNorm, dense, true);
  ops.add(rt, h, dense, h);
  for (const tensor of [experts, dense]) tensor.dispose();
}
