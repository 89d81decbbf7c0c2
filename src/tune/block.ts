import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { AttentionPlan, BlockPlan, BranchPlan, LinearPlan, MlpPlan, NormPlan } from '../model/plan.js';
import type { BlockState, BlockWeights } from '../model/program.js';
import type { RopeCache } from '../model/rope-cache.js';
import { weightOf } from '../model/weights.js';
import { Tape, type Value } from './tape.js';

/** Why a block cannot be trained: the operation that has no vector-Jacobian product. undefined: it can. */
export function withoutGradient({ attention, beside, mlp }: BlockPlan): string | undefined {
  if (attention.kind === 'recurrent' || beside) return 'recurrent layers';
  if (attention.kind === 'nothing' || mlp.kind === 'nothing') return 'blocks of one branch';
  if (attention.kind !== 'attention') return 'latent attention';
  if (mlp.kind === 'experts') return 'experts';
  if (attention.fused?.order === 'heads') return 'projections fused head by head';
  if (attention.chunk > 0) return 'attention in chunks';
  if (attention.temperature) return 'queries scaled by position';
  if (attention.indexer) return 'keys that an indexer chooses';
  if (mlp.kind === 'fused' && mlp.clamped) return 'a clamped gate';
  if (mlp.kind === 'gated' && mlp.gateScale !== undefined) return 'gates with a multiplier';
  if (typeof mlp.activation !== 'string') return 'xIELU';
  const norms = [...aroundOf(attention), ...aroundOf(mlp), attention.qNorm, attention.kNorm].filter(
    (norm) => norm !== undefined,
  );
  if (norms.some(({ kind }) => kind !== 'rms')) return 'layer norms';
  return norms.some(({ turns, split }) => turns > 1 || split) ? 'norms of their own for each head' : undefined;
}

function aroundOf({ norm, postNorm, residualNorm }: BranchPlan): (NormPlan | undefined)[] {
  return [norm, postNorm, residualNorm];
}

/** A pass of a block that can be taken back. */
export interface Pass {
  /** f32 [T,C]: what the block makes. */
  readonly output: Tensor;
  /** Adds to the gradients of the linears, from that with respect to the output, which may be overwritten. */
  backward(dy: Tensor): void;
  dispose(): void;
}

/**
 * Takes a state, which stays the caller's, through a block by its plan, as the stages do. `gradients`: dW f32 [N,K] of the linears to
 * be trained, by NAME. Only for blocks that withoutGradient() finds nothing in.
 */
export function passBlock(
  rt: NativeRuntime,
  plan: BlockPlan,
  weights: BlockWeights,
  ropes: RopeCache,
  state: BlockState,
  gradients: ReadonlyMap<string, Tensor>,
): Pass {
  const tape = new Tape(rt, weights, gradients);
  const attention = plan.attention as AttentionPlan;
  const mlp = plan.mlp as MlpPlan;
  const h = tape.input(state.h);
  const read = (x: Value, norm: NormPlan | undefined): Value => (norm ? tape.norm(x, norm) : x);
  const added = (to: Value, branch: BranchPlan, last: LinearPlan, inner: Value): Value => {
    const y = tape.scaled(read(tape.linear(inner, last), branch.postNorm), branch.multiplier);
    return read(tape.add(to, y), branch.residualNorm);
  };
  const attended = attend(tape, rt, attention, weights, ropes, state, read(h, attention.norm));
  const middle = added(h, attention, attention.o, attended);
  const y = added(middle, mlp, mlp.down, innerOf(tape, mlp, read(plan.parallel ? h : middle, mlp.norm)));
  return { output: y.tensor, backward: (dy) => tape.backward(y, dy), dispose: () => tape.dispose() };
}

function attend(
  tape: Tape,
  rt: NativeRuntime,
  plan: AttentionPlan,
  weights: BlockWeights,
  ropes: RopeCache,
  { batch }: BlockState,
  x: Value,
): Value {
  const { heads, kvHeads, headDim, valueDim, fused, scale, window, softCap } = plan;
  const widths = [heads * headDim, kvHeads * headDim, kvHeads * valueDim] as const;
  let projected: Value[];
  if (fused) {
    const whole = tape.linear(x, fused.linear);
    projected = widths.map((width, i) =>
      tape.columns(
        whole,
        widths.slice(0, i).reduce((a, b) => a + b, 0),
        width,
      ),
    );
  } else projected = [plan.q, plan.k, plan.v].map((linear) => tape.linear(x, linear));
  let [q, k, v] = projected as [Value, Value, Value];
  const normalize = (): void => {
    if (plan.qNorm) q = tape.norm(q, plan.qNorm);
    if (plan.kNorm) k = tape.norm(k, plan.kNorm);
  };
  if (!plan.normsLast) normalize();
  if (plan.rope) {
    const rotation = ropes.forBatch(rt, plan.rope, batch);
    q = tape.rope(q, heads, headDim, rotation);
    k = tape.rope(k, kvHeads, headDim, rotation);
  }
  if (plan.normsLast) normalize();
  const sinks = plan.sinks === undefined ? undefined : weightOf(weights, plan.sinks);
  const params = { heads, kvHeads, headDim, valueDim, scale, window, softCap };
  return tape.scaled(tape.attention(q, k, v, batch, params, sinks), plan.valueScale);
}

function innerOf(tape: Tape, plan: MlpPlan, x: Value): Value {
  const act = plan.activation;
  if (typeof act !== 'string') return x; // withoutGradient() has refused it
  if (plan.kind === 'plain') return tape.activation(tape.linear(x, plan.up), act);
  if (plan.kind === 'gated') return tape.gated(tape.linear(x, plan.gate), tape.linear(x, plan.up), act);
  const whole = tape.linear(x, plan.gateUp);
  return tape.gated(tape.columns(whole, 0, plan.down.k), tape.columns(whole, plan.down.k, plan.down.k), act);
}
