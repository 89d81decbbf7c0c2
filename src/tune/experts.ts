import { readTyped, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { route } from '../model/experts.js';
import { disposeInputs, expertInputs } from '../model/experts-apart.js';
import type { ExpertPlan, ExpertsPlan, GatePlan, SharedExpertPlan } from '../model/plan-experts.js';
import type { BlockState } from '../model/program.js';
import { weighedRows } from './heads.js';
import type { Tape, Value } from './tape.js';

/** Which rows each expert has, f32 [T,k] their shares, I32 [T*k] what they are of (src/model/experts.ts). */
export interface Routes {
  readonly rows: Tensor;
  readonly weights: Tensor;
  readonly bounds: Int32Array;
}

/** Why a mixture cannot be trained; undefined: it can. */
export function expertsWithoutGradient(plan: ExpertsPlan): string | undefined {
  return plan.router.n > plan.experts.length ? 'experts that pass their input on' : undefined;
}

/** The experts of a batch's tokens, from the residual stream h. The caller owns it. */
export async function routesOf(tape: Tape, plan: ExpertsPlan, h: Value, state: BlockState): Promise<Routes> {
  const { rt, weights } = tape;
  const read = expertInputs(rt, weights, plan, { ...state, h: h.tensor });
  // The shares themselves, whatever they multiply.
  const { x, offsets, ...routed } = route(
    rt,
    { ...plan, routing: { ...plan.routing, weighInput: false } },
    weights,
    state,
    read,
  );
  x.dispose();
  disposeInputs(read);
  const bounds = (await readTyped<Int32Array>(rt, offsets)).slice();
  offsets.dispose();
  return { ...routed, bounds };
}

/**
 * The residual stream h plus the output of a mixture of experts. The experts of a token and their shares are fixed: nothing is trained through
 * the router.
 */
export function passExperts(tape: Tape, plan: ExpertsPlan, h: Value, routes: Routes): Value {
  const { apart, shared, gate } = plan;
  const x = tape.norm(h, plan.norm);
  if (!apart || !shared) {
    const { latent } = plan;
    const made = routed(tape, plan, latent ? tape.linear(x, latent.into) : x, routes);
    const sum = latent ? tape.linear(made, latent.back) : made;
    return tape.add(h, shared ? tape.add(sum, sharedOf(tape, shared, gate, x)) : sum);
  }
  const experts = tape.norm(routed(tape, plan, tape.norm(h, apart.norm), routes), apart.postNorm);
  const dense = tape.norm(sharedOf(tape, shared, gate, x), apart.sharedPostNorm);
  return tape.add(h, tape.norm(tape.add(dense, experts), apart.sumNorm));
}

function routed(tape: Tape, plan: ExpertsPlan, x: Value, { rows, weights: shares, bounds }: Routes): Value {
  const { rt } = tape;
  const { perToken, weighInput } = plan.routing;
  const flat = tape.keep(shares.view([rows.shape[0] as number, 1]));
  const parts = plan.experts.flatMap((expert, e) => {
    const [first, end] = [bounds[e] as number, bounds[e + 1] as number];
    if (first === end) return [];
    const own = tape.keep(rows.view([end - first], first));
    let read = gathered(tape, x, own, perToken);
    if (weighInput) {
      const each = tape.keep(rt.allocate('f32', [end - first, 1]));
      ops.gatherRows(rt, flat, own, each);
      read = weighedRows(tape, read, each);
    }
    return [{ rows: own, value: tape.linear(hidden(tape, expert, plan.gate, read), expert.down) }];
  });
  if (!weighInput) return scattered(tape, parts, shares, x.tensor.shape, perToken);
  const count = rows.shape[0] as number;
  const ones = uploadTyped(rt, 'f32', [count / perToken, perToken], new Float32Array(count).fill(1));
  return scattered(tape, parts, tape.keep(ones), x.tensor.shape, perToken);
}

function hidden(tape: Tape, expert: ExpertPlan & Partial<SharedExpertPlan>, gate: GatePlan, x: Value): Value {
  const { gateUp, down } = expert;
  if (gateUp) {
    const whole = tape.linear(x, gateUp);
    return applied(tape, gate, tape.columns(whole, 0, down.k), tape.columns(whole, down.k, down.k));
  }
  const up = tape.linear(x, expert.up);
  return expert.gate ? applied(tape, gate, tape.linear(x, expert.gate), up) : applied(tape, gate, up, up);
}

/** As applyGate() (src/model/gate.ts): up is gate where there is no other. */
function applied(tape: Tape, plan: GatePlan, gate: Value, up: Value): Value {
  return plan.kind === 'plain' ? tape.activation(gate, plan.activation) : tape.gated(gate, up, plan);
}

/** The MLP that every token goes through. */
function sharedOf(tape: Tape, plan: SharedExpertPlan, gate: GatePlan, x: Value): Value {
  const { down, outputGate, multiplier } = plan;
  const y = tape.linear(hidden(tape, plan, gate, x), down);
  if (!outputGate) return tape.scaled(y, multiplier);
  const gates = widened(tape, tape.linear(x, outputGate), down.n);
  return tape.gated(gates, y, { kind: 'gated', activation: 'sigmoid' });
}

/** x [T,1] in every one of so many columns. */
function widened(tape: Tape, x: Value, width: number): Value {
  const { rt } = tape;
  const ones = tape.keep(uploadTyped(rt, 'f32', [width, 1], new Float32Array(width).fill(1)));
  const y = rt.allocate('f32', [x.tensor.shape[0] as number, width]);
  ops.linear(rt, x.tensor, ones, undefined, y);
  return tape.record(tape.made(y, x.wanted), (dy) => {
    const { dx, accumulate } = tape.into(x);
    ops.linearInputGradient(rt, dy, ones, dx, { accumulate });
  });
}

/** Rows of x: those that `rows` div `divide` names. */
function gathered(tape: Tape, x: Value, rows: Tensor, divide: number): Value {
  const { rt } = tape;
  const [count, [tokens, width]] = [rows.shape[0] as number, x.tensor.shape as [number, number]];
  const y = rt.allocate('f32', [count, width]);
  ops.gatherRows(rt, x.tensor, rows, y, { divide });
  return tape.record(tape.made(y, x.wanted), (dy) => {
    const { dx, accumulate } = tape.into(x);
    if (!accumulate) ops.zero(rt, dx);
    const ones = uploadTyped(rt, 'f32', [tokens, divide], new Float32Array(tokens * divide).fill(1));
    ops.scatterAddRows(rt, dy, rows, ones, dx, { divide });
    ones.dispose();
  });
}

/** Every token's sum of what its experts made, times their shares. */
function scattered(
  tape: Tape,
  parts: readonly { readonly rows: Tensor; readonly value: Value }[],
  shares: Tensor,
  shape: readonly number[],
  divide: number,
): Value {
  const { rt } = tape;
  const y = rt.allocate('f32', shape);
  ops.zero(rt, y);
  for (const { rows, value } of parts) ops.scatterAddRows(rt, value.tensor, rows, shares, y, { divide });
  const wanted = parts.some(({ value }) => value.wanted);
  return tape.record(tape.made(y, wanted), (dy) => {
    const flat = tape.keep(shares.view([shares.shape.reduce((a, b) => a * b, 1), 1]));
    for (const { rows, value } of parts) {
      const each = tape.keep(rt.allocate('f32', [rows.shape[0] as number, 1]));
      ops.gatherRows(rt, flat, rows, each);
      value.grad = tape.keep(rt.allocate('f32', value.tensor.shape));
      ops.gatherRows(rt, dy, rows, value.grad, { divide });
      ops.scaleRows(rt, value.grad, each, value.grad);
    }
  });
}
