import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { streamsOf } from './altup.js';
import { branchInput } from './branch.js';
import { firstStreams } from './hyper.js';
import { perLayerInputs, perLayerTensors } from './per-layer.js';
import type { ModelPlan } from './plan.js';
import type { BlockState, BlockWeights } from './program.js';
import { TOKEN_IDS } from './token-ids.js';
import { applyLinear, linearTensors, normTensors, weightOf } from './weights.js';

/** Weights outside the blocks, with their shapes. */
export function outerTensors(plan: ModelPlan): Map<string, readonly number[]> {
  const { embedding } = plan;
  const { positions } = embedding;
  return new Map<string, readonly number[]>([
    [embedding.weight, [plan.vocab, embedding.width]],
    ...(positions ? [[positions.weight, [positions.count + positions.first, plan.hidden]] as const] : []),
    ...[embedding.project, plan.projectOut].flatMap((linear) => (linear ? linearTensors(linear) : [])),
    ...(plan.perLayer ? perLayerTensors(plan.perLayer) : []),
    ...(plan.streams?.into ?? []).flatMap(linearTensors),
    ...normTensors(plan.finalNorm),
    ...linearTensors(plan.head),
  ]);
}

/** h f32 [T,C] of I32 [T] ids and positions. */
export function embed(rt: NativeRuntime, weights: BlockWeights, plan: ModelPlan, ids: Tensor, places: Tensor): Tensor {
  const { embedding, hidden } = plan;
  const { project, positions } = embedding;
  const tokens = ids.shape[0] as number;
  let h = rt.allocate('f32', [tokens, embedding.width]);
  ops.embedding(rt, ids, weightOf(weights, embedding.weight), h, { scale: embedding.scale });
  if (project) {
    const x = branchInput(rt, weights, undefined, { h });
    const wide = applyLinear(rt, weights, project, x);
    for (const tensor of [x, h]) tensor.dispose();
    h = wide;
  }
  if (positions) {
    const table = weightOf(weights, positions.weight).view([positions.count, hidden], positions.first * hidden);
    const learned = rt.allocate('f32', h.shape);
    ops.embedding(rt, places, table, learned);
    ops.add(rt, h, learned, h);
    for (const tensor of [table, learned]) tensor.dispose();
  }
  return h;
}

/** What goes along with the embeddings h f32 [T,C] (ModelGraph.carried). */
export function carried(
  rt: NativeRuntime,
  weights: BlockWeights,
  { perLayer, streams, hyper }: ModelPlan,
  ids: Tensor,
  h: Tensor,
): Record<string, Tensor> | undefined {
  if (!perLayer && !streams && !hyper) return undefined;
  return {
    ...(streams && streamsOf(rt, weights, streams, h)),
    ...(hyper && { streams: firstStreams(rt, hyper, h), [TOKEN_IDS]: ids.view(ids.shape) }),
    ...(perLayer && perLayerInputs(rt, weights, perLayer, ids, h)),
  };
}

/** ModelGraph.stream. */
export function streamWidth({ hidden, perLayer, streams, hyper }: ModelPlan): number {
  return hidden * ((streams?.inputs ?? 1) + (hyper?.streams ?? 0)) + (perLayer?.linear.n ?? 0);
}

/** What lm_head reads, of final states h f32 [T,C], to which `pending` is added. */
export function headInput(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: ModelPlan,
  h: Tensor,
  pending?: BlockState['pending'],
): Tensor {
  const x = branchInput(rt, weights, plan.finalNorm, { h, pending });
  if (!plan.projectOut) return x;
  const y = applyLinear(rt, weights, plan.projectOut, x, undefined, rt.activationDtype);
  x.dispose();
  return y;
}

export function logits(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: ModelPlan,
  h: Tensor,
  pending?: BlockState['pending'],
): Tensor {
  const x = headInput(rt, weights, plan, h, pending);
  const y = applyLinear(rt, weights, plan.head, x);
  x.dispose();
  const { scale, softCap: cap } = plan.logits;
  if (scale !== 1 || cap > 0) ops.softCap(rt, y, y, { scale, cap });
  return y;
}
