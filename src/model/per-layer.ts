import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { branchInput } from './branch.js';
import type { PerLayerEnd, PerLayerPlan } from './plan-per-layer.js';
import type { BlockState, BlockWeights } from './program.js';
import { applyLinear, applyNorm, linearTensors, normTensors, weightOf } from './weights.js';

/** Where a batch's vectors of all blocks are carried along, f32 [T, layers * size]. */
const PER_LAYER = 'per_layer';

export function perLayerTensors(plan: PerLayerPlan): [string, readonly number[]][] {
  const { weight, vocab, linear, norm } = plan;
  return [[weight, [vocab, linear.n]], ...linearTensors(linear), ...normTensors(norm)];
}

export function perLayerEndTensors({ gate, back, postNorm }: PerLayerEnd): [string, readonly number[]][] {
  return [...linearTensors(gate), ...linearTensors(back), ...normTensors(postNorm)];
}

/** The vectors of all blocks, of I32 [T] ids and their embeddings h f32 [T,C]. */
export function perLayerInputs(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: PerLayerPlan,
  ids: Tensor,
  h: Tensor,
): Record<string, Tensor> {
  const { size, layers, linear, norm, weight } = plan;
  const tokens = ids.shape[0] as number;
  const x = branchInput(rt, weights, undefined, { h });
  const made = applyLinear(rt, weights, linear, x);
  ops.scaleRows(rt, made, undefined, made, { factor: 1 / Math.sqrt(linear.k) });
  const runs = made.view([tokens * layers, size]);
  applyNorm(rt, weights, norm, runs, true);
  const looked = rt.allocate('f32', made.shape);
  ops.embedding(rt, ids, weightOf(weights, weight), looked, { scale: Math.sqrt(size) });
  ops.add(rt, made, looked, made);
  ops.scaleRows(rt, made, undefined, made, { factor: Math.SQRT1_2 });
  for (const tensor of [x, runs, looked]) tensor.dispose();
  return { [PER_LAYER]: made };
}

/** A batch's vectors for all blocks, from its state. */
export function perLayerVectors(carried: BlockState['carried']): Tensor {
  return weightOf(new Map(Object.entries(carried ?? {})), PER_LAYER);
}

/** postNorm(back(act(gate x) * p)) of x [T,C], p a token's vector for the block: f32 [T,C]. */
export function perLayerBranch(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: PerLayerEnd,
  { carried }: Pick<BlockState, 'carried'>,
  x: Tensor,
): Tensor {
  const { first, size, gate, back, postNorm, activation: act } = plan;
  const all = perLayerVectors(carried);
  const own = rt.allocate('f32', [x.shape[0] as number, size]);
  ops.sliceColumns(rt, all, own, { first });
  const inner = applyLinear(rt, weights, gate, x);
  ops.gatedActivation(rt, inner, own, inner, { act });
  const read = branchInput(rt, weights, undefined, { h: inner });
  const y = applyLinear(rt, weights, back, read);
  applyNorm(rt, weights, postNorm, y, true);
  for (const tensor of [own, inner, read]) tensor.dispose();
  return y;
}
