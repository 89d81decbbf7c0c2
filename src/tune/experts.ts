import { readTyped, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { route } from '../model/experts.js';
import type { ExpertPlan, ExpertsPlan, GatePlan, SharedExpertPlan } from '../model/plan-experts.js';
import type { BlockState } from '../model/program.js';
import type { Tape, Value } from './tape.js';

/** Which rows each expert has, f32 [T,k] their shares, I32 [T*k] what they are of (src/model/experts.ts). */
export interface Routes {
  readonly rows: Tensor;
  readonly weights: Tensor;
  readonly bounds: Int32Array;
}

/** Why a mixture cannot be trained; undefined: it can. */
export function expertsWithoutGradient(plan: ExpertsPlan): string | undefined {
  if (plan.apart) return 'experts beside an MLP with its own norms';
  if (plan.latent) return 'experts behind a projection';
  if (plan.router.n > plan.experts.length) return 'experts that hand on what they read';
  if (plan.routing.weighInput) return 'experts whose inputs have weights';
  return plan.gate.kind === 'clamped' || plan.gate.kind === 'limited' ? 'a clamped gate' : undefined;
}

/** Where a batch's tokens go. It belongs to the caller. */
export async function routesOf(tape: Tape, plan: ExpertsPlan, x: Value, state: BlockState): Promise<Routes> {
  const { rt, weights } = tape;
  const read = { experts: x.tensor, router: x.tensor, shared: x.tensor };
  const { x: gathered, offsets, ...routed } = route(rt, plan, weights, state, read);
  gathered.dispose();
  const bounds = (await readTyped<Int32Array>(rt, offsets)).slice();
  offsets.dispose();
  return { ...routed, bounds };
}

/**
 * What a mixture of experts makes of x, the normed input. Which experts a token goes to, and with what shares, is taken as given: nothing
 * is trained through the router.
 */
export function passExperts(tape: Tape, plan: ExpertsPlan, x: Value, routes: Routes): Value {
  const { rows, weights: shares, bounds } = routes;
  const { perToken } = plan.routing;
  const parts = plan.experts.flatMap((expert, e) => {
    const [first, end] = [bounds[e] as number, bounds[e + 1] as number];
    if (first === end) return [];
    const own = tape.keep(rows.view([end - first], first));
    const read = gathered(tape, x, own, perToken);
    return [{ rows: own, value: tape.linear(hidden(tape, expert, plan.gate, read), expert.down) }];
  });
  const sum = scattered(tape, parts, shares, x.tensor.shape, perToken);
  return plan.shared ? tape.add(sum, sharedOf(tape, plan.shared, plan.gate, x)) : sum;
}

function hidden(tape: Tape, expert: ExpertPlan & Partial<SharedExpertPlan>, gate: GatePlan, x: Value): Value {
  const { activation: act } = gate as Extract<GatePlan, { activation: unknown }>;
  const { gateUp, down } = expert;
  if (gateUp) {
    const whole = tape.linear(x, gateUp);
    return tape.gated(tape.columns(whole, 0, down.k), tape.columns(whole, down.k, down.k), act);
  }
  const up = tape.linear(x, expert.up);
  return expert.gate ? tape.gated(tape.linear(x, expert.gate), up, act) : tape.activation(up, act);
}

/** The MLP that every token goes through. */
function sharedOf(tape: Tape, plan: SharedExpertPlan, gate: GatePlan, x: Value): Value {
  const { down, outputGate, multiplier } = plan;
  const y = tape.linear(hidden(tape, plan, gate, x), down);
  if (!outputGate) return tape.scaled(y, multiplier);
  return tape.gated(widened(tape, tape.linear(x, outputGate), down.n), y, 'sigmoid');
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
