import { type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { coveringTokens, rowsOf } from './coverage.js';
import { DOWN, GATE_UP, innerOf, innerOfAll, outOfAll, type Routed, type Routing, split } from './expert-products.js';
import {
  addBranches,
  apartTensors,
  disposeInputs,
  type ExpertInputs,
  expertInputs,
  routerScores,
  scaleChosen,
} from './experts-apart.js';
import { type ExpertsPlan, expertInto } from './plan-experts.js';
import type { BlockState, BlockWeights, Feed, Stage } from './program.js';
import { type SharedExpert, type SharedInner, sharedExpert, sharedTensors } from './shared-expert.js';
import { SHORTCUT } from './shortcut.js';
import { TOKEN_IDS } from './token-ids.js';
import { applyLinear, linearRef, linearTensors, normTensors, weightOf } from './weights.js';

export function expertsTensors(plan: ExpertsPlan): [string, readonly number[]][] {
  const { bias, root } = plan.routing;
  return [
    ...normTensors(plan.norm),
    ...linearTensors(plan.router),
    ...(plan.latent ? [plan.latent.into, plan.latent.back].flatMap(linearTensors) : []),
    ...(bias === undefined ? [] : [[bias.name, bias.shape] as [string, readonly number[]]]),
    ...(root?.table ? [[root.table.name, root.table.shape] as [string, readonly number[]]] : []),
    ...plan.experts.flatMap((expert) => [...expertInto(expert), expert.down].flatMap(linearTensors)),
    ...sharedTensors(plan.shared),
    ...apartTensors(plan.apart, plan.experts.length),
  ];
}

const idle = ({ router, experts }: ExpertsPlan): number => router.n - experts.length;

/**
 * A pre-norm mixture of experts as two stages: `experts.gate_up` up to every routed row's hidden activation, `experts.down`
 * back into the residual stream. Each expert is a feed of its own, with its routed rows only; a shared expert is one that
 * reads every token. The router is no feed: it is small, and an error in it sends tokens to other experts. `handsOn`: what the routed
 * experts make is left for a later block (shortcut.ts).
 */
export function expertsStages(plan: ExpertsPlan, handsOn = false): Stage[] {
  const shared = plan.shared && sharedExpert(plan.shared, plan.gate);
  return [gateUpStage(plan, shared), downStage(plan, shared, handsOn)];
}

function feeds(plan: ExpertsPlan, kind: 'gate_up' | 'down'): Feed[] {
  return plan.experts.map((expert, e) => ({
    id: `experts.${e}.${kind}`,
    linears: (kind === 'down' ? [expert.down] : expertInto(expert)).map((linear) => linearRef(linear, e)),
  }));
}

/** What is read, f32|16 bits [T,C], stays the caller's. */
export function route(
  rt: NativeRuntime,
  plan: ExpertsPlan,
  weights: BlockWeights,
  state: BlockState,
  { experts: normed, router }: ExpertInputs,
): Routing {
  const { perToken, sigmoid, normalize, scale, groups, topGroups, topTwo, jitter } = plan.routing;
  const { tokens } = state.batch;
  const experts = plan.router.n;
  const scores = routerScores(rt, weights, plan, router);
  const indices = rt.allocate('i32', [tokens, perToken]);
  const shares = rt.allocate('f32', [tokens, perToken]);
  const rows = rt.allocate('i32', [tokens * perToken]);
  const offsets = rt.allocate('i32', [experts + 1]);
  const x = rt.allocate(normed.dtype, [tokens * perToken, normed.shape[1] as number]);
  const bias = plan.routing.bias && weightOf(weights, plan.routing.bias.name).view([experts]);
  const choice = { k: perToken, sigmoid, normalize, scale, groups, topGroups, topTwo, ...(jitter > 0 && { jitter }) };
  if (plan.routing.root) routeByRoots(rt, weights, plan, state, { logits: scores, bias }, { indices, weights: shares });
  else ops.routeTopK(rt, scores, indices, shares, choice, bias);
  bias?.dispose();
  scaleChosen(rt, weights, plan, indices, shares);
  ops.groupByExpert(rt, indices, rows, offsets, { experts });
  ops.gatherRows(rt, normed, rows, x, { divide: perToken });
  for (const tensor of [scores, indices]) tensor.dispose();
  if (!plan.routing.weighInput) return { x, rows, weights: shares, offsets };
  const each = rt.allocate('f32', [tokens * perToken, 1]);
  ops.gatherRows(rt, shares.view([tokens * perToken, 1]), rows, each);
  ops.scaleRows(rt, x, each, x);
  for (const tensor of [each, shares]) tensor.dispose();
  const ones = uploadTyped(rt, 'f32', [tokens, perToken], new Float32Array(tokens * perToken).fill(1));
  return { x, rows, weights: ones, offsets };
}

/** Shares that are roots of softpluses, of the best experts or of those that a table names for the tokens' ids. */
function routeByRoots(
  rt: NativeRuntime,
  weights: BlockWeights,
  { routing: { root, perToken: k, scale } }: ExpertsPlan,
  { carried = {} }: BlockState,
  from: { readonly logits: Tensor; readonly bias: Tensor | undefined },
  to: { readonly indices: Tensor; readonly weights: Tensor },
): void {
  const table = root?.table && weightOf(weights, root.table.name);
  const ids = table && weightOf(new Map(Object.entries(carried)), TOKEN_IDS);
  ops.routeRoot(rt, { ...from, ids, table }, to, { k, scale });
}

/** The tokens of experts to which too few are sent (coverage.ts); [] without a coverage. */
async function covering(
  rt: NativeRuntime,
  plan: ExpertsPlan,
  weights: BlockWeights,
  router: Tensor,
  { rows, offsets }: Pick<Routing, 'rows' | 'offsets'>,
  coverage: number,
): Promise<(Int32Array | undefined)[]> {
  if (coverage === 0) return [];
  const scores = routerScores(rt, weights, plan, router);
  const tokens = await coveringTokens(rt, { scores, rows, offsets, perToken: plan.routing.perToken }, coverage);
  scores.dispose();
  return tokens;
}

function gateUpStage(plan: ExpertsPlan, shared: SharedExpert | undefined): Stage {
  return {
    id: GATE_UP,
    feeds: [...feeds(plan, 'gate_up'), ...(shared ? [shared.gateUp] : [])],
    async capture(rt, weights, state, coverage = 0) {
      const read = expertInputs(rt, weights, plan, state);
      const routed = route(rt, plan, weights, state, read);
      const captured = new Map<string, Tensor>();
      const more = await covering(rt, plan, weights, read.router, routed, coverage);
      await split(rt, routed.x, routed.offsets, (e, rows) => {
        if (e >= plan.experts.length) return rows.dispose();
        const tokens = more[e];
        captured.set(`experts.${e}.gate_up`, tokens ? rowsOf(rt, read.experts, tokens) : rows);
        if (tokens) rows.dispose();
      });
      for (const tensor of Object.values(routed)) tensor.dispose();
      if (shared) captured.set(shared.gateUp.id, read.shared.view(read.shared.shape));
      disposeInputs(read);
      return captured;
    },
    async advance(rt, weights, state) {
      const read = expertInputs(rt, weights, plan, state);
      const { x, ...routed } = route(rt, plan, weights, state, read);
      const beside = shared ? shared.inner(rt, weights, read.shared) : {};
      const same = idle(plan) > 0 ? { same: read.experts.view(read.experts.shape) } : undefined;
      disposeInputs(read);
      // Rows of idle experts hold nothing that is read.
      const inner = await innerOfAll(rt, plan, weights, x, routed.offsets);
      x.dispose();
      return { ...state, aux: { ...routed, inner, ...same, ...beside } };
    },
  };
}

function zeros(rt: NativeRuntime, shape: readonly number[]): Tensor {
  const made = rt.allocate('f32', shape);
  ops.zero(rt, made);
  return made;
}

/** Adds to `to` f32 [T,C] what the experts of each token made, rows of `out`. */
function addExperts(
  rt: NativeRuntime,
  weights: BlockWeights,
  { latent, routing: { perToken: divide } }: ExpertsPlan,
  { rows, weights: shares }: Routed,
  out: Tensor,
  to: Tensor,
): void {
  if (!latent) {
    ops.scatterAddRows(rt, out, rows, shares, to, { divide });
    return;
  }
  const sum = zeros(rt, [to.shape[0] as number, latent.back.k]);
  ops.scatterAddRows(rt, out, rows, shares, sum, { divide });
  const read = rt.allocate(rt.activationDtype, sum.shape);
  ops.cast(rt, sum, read);
  applyLinear(rt, weights, latent.back, read, { y: to, accumulate: true });
  for (const tensor of [sum, read]) tensor.dispose();
}

function downStage(plan: ExpertsPlan, shared: SharedExpert | undefined, handsOn: boolean): Stage {
  return {
    id: DOWN,
    feeds: [...feeds(plan, 'down'), ...(shared ? [shared.down] : [])],
    async capture(rt, weights, state, coverage = 0) {
      const routed = state.aux as unknown as Routed;
      const captured = new Map<string, Tensor>();
      // h is what it was before gate and up: the mixture is added to it by advance().
      const read = coverage > 0 ? expertInputs(rt, weights, plan, state) : undefined;
      const more = read ? await covering(rt, plan, weights, read.router, routed, coverage) : [];
      await split(rt, routed.inner, routed.offsets, (e, rows) => {
        if (e >= plan.experts.length) return rows.dispose();
        const tokens = more[e];
        if (!read || !tokens) return captured.set(`experts.${e}.down`, rows);
        const x = rowsOf(rt, read.experts, tokens);
        captured.set(`experts.${e}.down`, innerOf(rt, plan, weights, e, x));
        for (const tensor of [x, rows]) tensor.dispose();
      });
      if (read) disposeInputs(read);
      if (shared) {
        const { sharedInner } = state.aux as unknown as SharedInner;
        captured.set(shared.down.id, sharedInner.view(sharedInner.shape));
      }
      return captured;
    },
    async advance(rt, weights, state) {
      const routed = state.aux as unknown as Routed;
      const out = await outOfAll(rt, plan, weights, routed);
      const aside = handsOn ? zeros(rt, state.h.shape) : undefined;
      addBranches(rt, weights, plan, shared, state, (to) => addExperts(rt, weights, plan, routed, out, aside ?? to));
      out.dispose();
      for (const tensor of Object.values(state.aux)) tensor.dispose();
      return { ...state, aux: aside ? { [SHORTCUT]: aside } : {} };
    },
  };
}
