import { type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { applyGate, gatingOf } from './gate.js';
import type { LinearPlan } from './plan.js';
import type { ExpertPlan, ExpertsPlan } from './plan-experts.js';
import type { BlockWeights } from './program.js';
import { applyStacked } from './stacked-experts.js';
import { applyLinear } from './weights.js';

/** Stages of a mixture: up to every routed row's hidden activation, and back. */
export const [GATE_UP, DOWN] = ['experts.gate_up', 'experts.down'] as const;

/** Where tokens go: rows of all experts stand one after another, expert e's at offsets[e] .. offsets[e+1]. */
export interface Routing {
  /** [T*k, C]: the normalised input of each routed row. */
  readonly x: Tensor;
  /** I32 [T*k]: flat index t*k+j of each row, f32 [T,k]: its weights, I32 [E+1]. */
  readonly rows: Tensor;
  readonly weights: Tensor;
  readonly offsets: Tensor;
}

/** `same`: what idle experts hand on, [T,C]. */
export type Routed = Omit<Routing, 'x'> & { readonly inner: Tensor; readonly same?: Tensor };

/** Calls `each` with a view of the rows of every expert in x [T*k, width]; the callee disposes of it. */
export async function split(
  rt: NativeRuntime,
  x: Tensor,
  offsets: Tensor,
  each: (expert: number, rows: Tensor, first: number) => unknown,
): Promise<void> {
  // How many rows each expert has is needed here, before anything can be enqueued for it.
  const bounds = await readTyped<Int32Array>(rt, offsets);
  const width = x.shape[1] as number;
  for (let e = 0; e + 1 < bounds.length; e++) {
    const first = bounds[e] as number;
    each(e, x.view([(bounds[e + 1] as number) - first, width], first * width), first);
  }
}

/** An expert's hidden activations of rows x, which stay the caller's. */
export function innerOf(rt: NativeRuntime, plan: ExpertsPlan, weights: BlockWeights, e: number, x: Tensor): Tensor {
  const expert = plan.experts[e] as ExpertPlan;
  const gate = rt.allocate(rt.activationDtype, [x.shape[0] as number, plan.intermediate]);
  const up = rt.allocate(gate.dtype, gate.shape);
  applyInto(rt, weights, expert, x, { gate, up, first: 0 });
  applyGate(rt, plan.gate, gate, up);
  up.dispose();
  return gate;
}

/** What gate and up of one expert make of its rows; up alone where there is no gate. */
function applyInto(
  rt: NativeRuntime,
  weights: BlockWeights,
  expert: ExpertPlan,
  rows: Tensor,
  { gate, up, first }: { gate: Tensor; up: Tensor; first: number },
): void {
  if (expert.gate) applyTo(rt, weights, expert.gate, rows, gate, first);
  applyTo(rt, weights, expert.up, rows, expert.gate ? up : gate, first);
}

/** A linear of one expert, from its rows into its part of `whole` [T*k, N]. */
function applyTo(
  rt: NativeRuntime,
  weights: BlockWeights,
  linear: LinearPlan,
  rows: Tensor,
  whole: Tensor,
  first: number,
): void {
  const [count] = rows.shape as [number];
  if (count === 0) return;
  const y = whole.view([count, linear.n], first * linear.n);
  applyLinear(rt, weights, linear, rows, { y, accumulate: false });
  y.dispose();
}

/** Hidden activations of rows x [T*k, C]; without reading how many each expert has where they are stacked. */
export async function innerOfAll(
  rt: NativeRuntime,
  plan: ExpertsPlan,
  weights: BlockWeights,
  x: Tensor,
  offsets: Tensor,
): Promise<Tensor> {
  const stacked = weights.stacked?.get(GATE_UP);
  if (stacked?.interleaved) return applyStacked(rt, stacked, x, offsets, { gating: gatingOf(plan.gate) });
  if (stacked) {
    const up = applyStacked(rt, stacked, x, offsets);
    applyGate(rt, plan.gate, up, up);
    return up;
  }
  const gate = rt.allocate(rt.activationDtype, [x.shape[0] as number, plan.intermediate]);
  const up = rt.allocate(gate.dtype, gate.shape);
  await split(rt, x, offsets, (e, rows, first) => {
    const expert = plan.experts[e];
    if (expert) applyInto(rt, weights, expert, rows, { gate, up, first });
    rows.dispose();
  });
  applyGate(rt, plan.gate, gate, up);
  up.dispose();
  return gate;
}

/** What the downs make of their experts' rows, [T*k, C]; likewise. */
export async function outOfAll(
  rt: NativeRuntime,
  plan: ExpertsPlan,
  weights: BlockWeights,
  { inner, offsets, same, rows: tokens }: Routed,
): Promise<Tensor> {
  const shape = [inner.shape[0] as number, plan.latent?.back.k ?? plan.router.k];
  const stacked = weights.stacked?.get(DOWN);
  if (stacked) {
    const others = same && rt.allocate(same.dtype, shape);
    if (same && others) ops.gatherRows(rt, same, tokens, others, { divide: plan.routing.perToken });
    const out = applyStacked(rt, stacked, inner, offsets, { others });
    others?.dispose();
    return out;
  }
  const out = rt.allocate('f32', shape);
  await split(rt, inner, offsets, (e, rows, first) => {
    const expert = plan.experts[e];
    if (expert) applyTo(rt, weights, expert.down, rows, out, first);
    else if (same) handOn(rt, plan, same, tokens, out, first, rows.shape[0] as number);
    rows.dispose();
  });
  return out;
}

/** Rows first .. first + count of out [T*k, C]: what the tokens they are of read. */
function handOn(
  rt: NativeRuntime,
  { routing: { perToken: divide } }: ExpertsPlan,
  same: Tensor,
  rows: Tensor,
  out: Tensor,
  first: number,
  count: number,
): void {
  if (count === 0) return;
  const width = out.shape[1] as number;
  const [which, to] = [rows.view([count], first), out.view([count, width], first * width)];
  const read = rt.allocate(same.dtype, to.shape);
  ops.gatherRows(rt, same, which, read, { divide });
  ops.cast(rt, read, to);
  for (const tensor of [read, which, to]) tensor.dispose();
}
