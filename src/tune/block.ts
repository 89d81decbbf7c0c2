import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { Selection } from '../model/indexer.js';
import type { RecurrentPlan } from '../model/mixers/plan.js';
import { perLayerVectors } from '../model/per-layer.js';
import type { AttentionPlan, BlockPlan, BranchPlan, LinearPlan, MlpPlan, NormPlan } from '../model/plan.js';
import type { MlaPlan } from '../model/plan-mla.js';
import { entered } from '../model/prediction.js';
import type { BlockState, BlockWeights } from '../model/program.js';
import type { RopeCache } from '../model/rope-cache.js';
import { weightOf } from '../model/weights.js';
import { attend, attentionWithoutGradient, scaledBy, selectionOf } from './attention.js';
import { expertsWithoutGradient, passExperts, type Routes, routesOf } from './experts.js';
import { passLatent } from './latent-attention.js';
import { passMixer } from './mixers.js';
import { type GatedPlan, Tape, type Value, type WeightGradient } from './tape.js';

/** Why a block cannot be trained: the operation that has no vector-Jacobian product. undefined: it can. */
export function withoutGradient({ attention, mlp, altUp, hyper, shortcut }: BlockPlan): string | undefined {
  if (altUp) return 'alternating updates';
  if (hyper) return 'hyper-connections';
  if (shortcut) return 'experts that are added after a later block';
  if (attention.kind === 'compressed') return 'compressed attention';
  const mixing = attention.kind === 'attention' ? attentionWithoutGradient(attention) : undefined;
  return mixing ?? (mlp.kind === 'experts' ? expertsWithoutGradient(mlp) : undefined);
}

/** The choices of a pass, which another pass can repeat: the experts of tokens, and the keys that they see. */
export interface Choices {
  readonly routes?: Routes | undefined;
  readonly selection?: Selection | undefined;
}

/** A pass of a block that can be taken back. */
export interface Pass {
  /** f32 [T,C]: what the block makes. */
  readonly output: Tensor;
  /** Gone with the pass. */
  readonly choices: Choices;
  /**
   * Adds to the gradients of the linears, from that with respect to the output, which may be overwritten. Of a pass through: `kept` are
   * gradients of keys and values that blocks behind this one have read, by name, from which those of its own are taken and to which those of
   * the blocks before are added; returns the gradient with respect to the state's h. Both are the caller's.
   */
  backward(dy: Tensor, kept?: Map<string, Tensor>): Tensor | undefined;
  dispose(): void;
}

/**
 * Takes a state, which stays the caller's, through a block by its plan, as the stages do. `gradients`: of the linears to be trained, by
 * NAME. `held`: the choices of an earlier pass, to repeat. `through`: with the gradient of what the block is given. Only for blocks whose
 * withoutGradient() is undefined.
 */
export async function passBlock(
  rt: NativeRuntime,
  plan: BlockPlan,
  weights: BlockWeights,
  ropes: RopeCache,
  state: BlockState,
  gradients: ReadonlyMap<string, WeightGradient>,
  held?: Choices,
  through = false,
): Promise<Pass> {
  const tape = new Tape(rt, weights, gradients, through);
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
  const own: { selection?: Selection | undefined; routes?: Routes } = {};
  let middle = h;
  if (attention.kind !== 'nothing') {
    const x = read(h, attention.norm);
    const choose = (make: () => Selection | undefined): Selection | undefined => {
      if (held) return held.selection;
      own.selection = make();
      return own.selection;
    };
    middle = added(h, attention, attention.o, mixed(tape, attention, ropes, x, given, choose));
  }
  const { beside } = plan;
  if (beside) middle = added(middle, beside, beside.o, passMixer(tape, beside, read(h, beside.norm), given.batch));
  let y = middle;
  if (mlp.kind === 'experts') {
    if (!held) own.routes = await routesOf(tape, mlp, middle, given);
    y = passExperts(tape, mlp, middle, (held ?? own).routes as Routes);
  } else if (mlp.kind !== 'nothing') {
    y = added(middle, mlp, mlp.down, innerOf(tape, mlp, read(plan.parallel ? h : middle, mlp.norm)));
  }
  y = ended(tape, plan, y, given);
  return {
    output: y.tensor,
    choices: held ?? own,
    backward: (dy, kept) => {
      if (kept) takeKept(tape, kept);
      tape.backward(y, dy);
      if (kept) giveKept(tape, kept);
      return through ? h.grad?.view(h.tensor.shape) : undefined;
    },
    dispose: () => {
      tape.dispose();
      for (const tensor of [own.routes?.rows, own.routes?.weights, own.selection?.indices]) tensor?.dispose();
    },
  };
}

/** Gradients of the keys and values that later blocks have read of this one. */
function takeKept(tape: Tape, kept: Map<string, Tensor>): void {
  for (const [name, value] of tape.shared) {
    const gradient = kept.get(name);
    if (!gradient) continue;
    value.grad = tape.keep(gradient);
    kept.delete(name);
  }
}

/** Adds those of what this block has read of an earlier one. */
function giveKept({ rt, read }: Tape, kept: Map<string, Tensor>): void {
  for (const [name, { grad }] of read) {
    const sum = kept.get(name);
    if (grad && sum) ops.add(rt, sum, grad, sum);
    else if (grad) kept.set(name, grad.view(grad.shape));
  }
}

type Trained = AttentionPlan | MlaPlan | RecurrentPlan | Extract<BlockPlan['attention'], { readonly kind: 'nothing' }>;

function mixed(
  tape: Tape,
  plan: Exclude<Trained, { readonly kind: 'nothing' }>,
  ropes: RopeCache,
  x: Value,
  state: BlockState,
  choose: (make: () => Selection | undefined) => Selection | undefined,
): Value {
  if (plan.kind === 'recurrent') return passMixer(tape, plan, x, state.batch);
  if (plan.kind === 'mla') return passLatent(tape, plan, ropes, x, state, choose);
  const selection = choose(() => selectionOf(tape, plan, ropes, x, state));
  return attend(tape, plan, ropes, state, x, selection);
}

function innerOf(tape: Tape, plan: MlpPlan, x: Value): Value {
  if (plan.kind === 'plain') return tape.activation(tape.linear(x, plan.up), plan.activation);
  const gate: GatedPlan = plan.clamped
    ? { kind: 'clamped', ...plan.clamped }
    : { kind: 'gated', activation: plan.activation };
  if (plan.kind === 'gated') {
    const scaled = tape.scaled(tape.linear(x, plan.gate), plan.gateScale ?? 1);
    return tape.gated(scaled, tape.linear(x, plan.up), gate);
  }
  const whole = tape.linear(x, plan.gateUp);
  return tape.gated(tape.columns(whole, 0, plan.down.k), tape.columns(whole, plan.down.k, plan.down.k), gate);
}

/** What comes behind a block's branches (src/model/block-end.ts), in place. */
function ended(tape: Tape, { perLayer, scalar }: BlockPlan, h: Value, { carried }: BlockState): Value {
  let y = h;
  if (perLayer) {
    const { first, size, gate, back, postNorm, activation } = perLayer;
    const own = tape.keep(tape.rt.allocate('f32', [h.tensor.shape[0] as number, size]));
    ops.sliceColumns(tape.rt, perLayerVectors(carried), own, { first });
    const inner = tape.gated(tape.linear(h, gate), tape.constant(own), { kind: 'gated', activation });
    y = tape.add(h, tape.norm(tape.linear(inner, back), postNorm));
  }
  return scalar === undefined ? y : scaledBy(tape, y, weightOf(tape.weights, scalar));
}
