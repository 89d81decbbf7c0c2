import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { chunked } from '../model/attention.js';
import type { RecurrentPlan } from '../model/mixers/plan.js';
import type { AttentionPlan, BlockPlan, BranchPlan, LinearPlan, MlpPlan, NormPlan } from '../model/plan.js';
import type { MlaPlan } from '../model/plan-mla.js';
import { entered } from '../model/prediction.js';
import type { Batch, BlockState, BlockWeights } from '../model/program.js';
import type { RopeCache } from '../model/rope-cache.js';
import { weightOf } from '../model/weights.js';
import { expertsWithoutGradient, passExperts, type Routes, routesOf } from './experts.js';
import { headsOf, weighedRows } from './heads.js';
import { passLatent } from './latent-attention.js';
import { passMixer } from './mixers.js';
import { Tape, type Value } from './tape.js';

/** Why a block cannot be trained: the operation that has no vector-Jacobian product. undefined: it can. */
export function withoutGradient(plan: BlockPlan): string | undefined {
  const { attention, mlp } = plan;
  const around = surroundings(plan);
  if (around !== undefined) return around;
  if (attention.kind === 'nothing' || mlp.kind === 'nothing') return 'blocks of one branch';
  const mixing = mixerWithoutGradient(attention);
  if (mixing !== undefined) return mixing;
  const inner = mlp.kind === 'experts' ? expertsWithoutGradient(mlp) : mlpWithoutGradient(mlp);
  if (inner !== undefined) return inner;
  const branch = mlp.kind === 'experts' ? [mlp.norm] : aroundOf(mlp);
  const norms = [...aroundOf(attention), ...branch, ...ownNorms(attention)].filter((norm) => norm !== undefined);
  if (norms.some(({ kind }) => kind !== 'rms')) return 'layer norms';
  return norms.some(({ turns, split }) => turns > 1 || split) ? 'separate norms for each head' : undefined;
}

function surroundings({ beside, altUp, hyper, perLayer, scalar, shortcut }: BlockPlan): string | undefined {
  if (beside) return 'attention beside a recurrent layer';
  if (altUp) return 'alternating updates';
  if (hyper) return 'hyper-connections';
  if (perLayer) return 'per-layer embeddings';
  if (scalar !== undefined) return 'a separate factor';
  return shortcut ? 'experts that are added behind a later block' : undefined;
}

function mixerWithoutGradient(attention: BlockPlan['attention']): string | undefined {
  if (attention.kind === 'recurrent')
    return ['delta', 'conv'].includes(attention.core.kind) ? undefined : 'state spaces';
  if (attention.kind === 'compressed') return 'compressed attention';
  if ('indexer' in attention && attention.indexer) return 'keys that an indexer chooses';
  if (attention.kind !== 'attention') return undefined;
  if (attention.fused?.order === 'heads') return 'projections fused head by head';
  const { reads, kept, keysAsValues } = attention;
  if (reads !== undefined || kept !== undefined) return 'keys that several blocks share';
  return keysAsValues ? 'keys that are values, too' : undefined;
}

function mlpWithoutGradient(mlp: MlpPlan): string | undefined {
  if (mlp.kind === 'fused' && mlp.clamped) return 'a clamped gate';
  if (mlp.kind === 'gated' && mlp.gateScale !== undefined) return 'gates with a multiplier';
  return typeof mlp.activation === 'string' ? undefined : 'xIELU';
}

/** Norms inside a mixer. */
function ownNorms(attention: BlockPlan['attention']): (NormPlan | undefined)[] {
  if (attention.kind === 'attention') return [attention.qNorm, attention.kNorm, attention.vNorm];
  if (attention.kind === 'mla')
    return [attention.kvNorm, ...(attention.query.kind === 'latent' ? [attention.query.norm] : [])];
  return attention.kind === 'recurrent' && attention.core.kind === 'delta' ? [attention.core.norm] : [];
}

function aroundOf({ norm, postNorm, residualNorm }: BranchPlan): (NormPlan | undefined)[] {
  return [norm, postNorm, residualNorm];
}

/** A pass of a block that can be taken back. */
export interface Pass {
  /** f32 [T,C]: what the block makes. */
  readonly output: Tensor;
  /** Of a mixture of experts; gone with the pass. */
  readonly routes?: Routes;
  /** Adds to the gradients of the linears, from that with respect to the output, which may be overwritten. */
  backward(dy: Tensor): void;
  dispose(): void;
}

/**
 * Takes a state, which stays the caller's, through a block by its plan, as the stages do. `gradients`: dW f32 [N,K] of the linears to
 * be trained, by NAME. `held`: where tokens went in an earlier pass, to go there again. Only for blocks that withoutGradient() finds
 * nothing in.
 */
export async function passBlock(
  rt: NativeRuntime,
  plan: BlockPlan,
  weights: BlockWeights,
  ropes: RopeCache,
  state: BlockState,
  gradients: ReadonlyMap<string, Tensor>,
  held?: Routes,
): Promise<Pass> {
  const tape = new Tape(rt, weights, gradients);
  const { mlp } = plan;
  const attention = plan.attention as Trained;
  const given = plan.prediction ? entered(rt, weights, plan.prediction, state) : state;
  if (plan.prediction) tape.keep(given.h);
  const h = tape.input(given.h);
  const read = (x: Value, norm: NormPlan | undefined): Value => (norm ? tape.norm(x, norm) : x);
  const added = (to: Value, branch: BranchPlan, last: LinearPlan, inner: Value): Value => {
    const y = tape.scaled(read(tape.linear(inner, last), branch.postNorm), branch.multiplier);
    return read(tape.add(to, y), branch.residualNorm);
  };
  const x = read(h, attention.norm);
  const middle = added(h, attention, attention.o, mixed(tape, attention, ropes, x, given));
  let y: Value;
  let routes = held;
  if (mlp.kind === 'experts') {
    const normed = read(middle, mlp.norm);
    routes ??= await routesOf(tape, mlp, normed, given);
    y = tape.add(middle, passExperts(tape, mlp, normed, routes));
  } else {
    const own = mlp as MlpPlan;
    y = added(middle, own, own.down, innerOf(tape, own, read(plan.parallel ? h : middle, own.norm)));
  }
  return {
    output: y.tensor,
    ...(routes && { routes }),
    backward: (dy) => tape.backward(y, dy),
    dispose: () => {
      tape.dispose();
      if (routes && !held) for (const tensor of [routes.rows, routes.weights]) tensor.dispose();
    },
  };
}

type Trained = AttentionPlan | MlaPlan | RecurrentPlan;

function mixed(tape: Tape, plan: Trained, ropes: RopeCache, x: Value, { batch }: BlockState): Value {
  if (plan.kind === 'recurrent') return passMixer(tape, plan, x, batch);
  return plan.kind === 'mla' ? passLatent(tape, plan, ropes, x, batch) : attend(tape, plan, ropes, batch, x);
}

function attend(tape: Tape, plan: AttentionPlan, ropes: RopeCache, batch: Batch, x: Value): Value {
  const { rt, weights } = tape;
  const { heads, kvHeads, headDim, valueDim, fused, scale, window, softCap, temperature } = plan;
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
  const gate = plan.outputGate && headsOf(tape, q, heads, 2 * headDim, headDim, headDim);
  if (gate) q = headsOf(tape, q, heads, 2 * headDim, 0, headDim);
  if (plan.vNorm) v = tape.norm(v, plan.vNorm);
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
  if (temperature) {
    const scales = tape.keep(rt.allocate('f32', [batch.tokens, 1]));
    ops.embedding(rt, batch.positions, ropes.temperatures(rt, temperature, batch.longest), scales);
    q = weighedRows(tape, q, scales);
  }
  const sinks = plan.sinks === undefined ? undefined : weightOf(weights, plan.sinks);
  const params = { heads, kvHeads, headDim, valueDim, scale, window, softCap };
  const attended = tape.attention(q, k, v, chunked(rt, batch, plan.chunk), params, sinks);
  return tape.scaled(gate ? tape.gated(gate, attended, 'sigmoid') : attended, plan.valueScale);
}

function innerOf(tape: Tape, plan: MlpPlan, x: Value): Value {
  const act = plan.activation;
  if (typeof act !== 'string') return x; // withoutGradient() has refused it
  if (plan.kind === 'plain') return tape.activation(tape.linear(x, plan.up), act);
  if (plan.kind === 'gated') return tape.gated(tape.linear(x, plan.gate), tape.linear(x, plan.up), act);
  const whole = tape.linear(x, plan.gateUp);
  return tape.gated(tape.columns(whole, 0, plan.down.k), tape.columns(whole, plan.down.k, plan.down.k), act);
}
