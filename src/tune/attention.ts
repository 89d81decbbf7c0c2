import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { chunked } from '../model/attention.js';
import { indexInputs, type Selection, select } from '../model/indexer.js';
import { keptBy, keptNames } from '../model/kept-keys.js';
import type { AttentionPlan } from '../model/plan.js';
import type { BlockState } from '../model/program.js';
import type { RopeCache } from '../model/rope-cache.js';
import { weightOf } from '../model/weights.js';
import { headsOf, weighedRows } from './heads.js';
import type { Tape, Value } from './tape.js';

/** Why attention cannot be trained; undefined: it can. */
export function attentionWithoutGradient(plan: AttentionPlan): string | undefined {
  const { keysAsValues, kNorm, vNorm, normsLast } = plan;
  // Norms leave what they read as it is, so that both may read it.
  return keysAsValues && (!kNorm || !vNorm || normsLast) ? 'keys that are also values, without norms' : undefined;
}

/** The keys that tokens of a batch see, where an indexer chooses them; the caller's to dispose of. */
export function selectionOf(
  { rt, weights }: Tape,
  { indexer }: AttentionPlan,
  ropes: RopeCache,
  x: Value,
  state: BlockState,
): Selection | undefined {
  if (!indexer) return undefined;
  const inputs = indexInputs(rt, weights, indexer, x.tensor);
  const selection = select(rt, weights, indexer, { ...inputs, read: x.tensor }, state, ropes);
  for (const tensor of Object.values(inputs)) tensor.dispose();
  return selection;
}

/** What o reads, of the normed input x. */
export function attend(
  tape: Tape,
  plan: AttentionPlan,
  ropes: RopeCache,
  state: BlockState,
  x: Value,
  selection: Selection | undefined,
): Value {
  const { rt, weights } = tape;
  const { batch } = state;
  const { heads, kvHeads, headDim, valueDim, scale, window, softCap, temperature, reads } = plan;
  let [q, k, v] = projected(tape, plan, x, state);
  const gate = plan.outputGate && headsOf(tape, q, heads, 2 * headDim, headDim, headDim);
  if (gate) q = headsOf(tape, q, heads, 2 * headDim, 0, headDim);
  if (plan.vNorm && reads === undefined) v = tape.norm(v, plan.vNorm);
  const normalize = (): void => {
    if (plan.qNorm) q = tape.norm(q, plan.qNorm);
    if (plan.kNorm) k = tape.norm(k, plan.kNorm);
  };
  if (!plan.normsLast) normalize();
  if (plan.rope) {
    const rotation = ropes.forBatch(rt, plan.rope, batch);
    q = tape.rope(q, heads, headDim, rotation);
    if (reads === undefined) k = tape.rope(k, kvHeads, headDim, rotation);
  }
  if (plan.normsLast) normalize();
  if (plan.kept !== undefined) for (const [i, name] of keptNames(plan.kept).entries()) tape.shared.set(name, i ? v : k);
  if (temperature) {
    const scales = tape.keep(rt.allocate('f32', [batch.tokens, 1]));
    ops.embedding(rt, batch.positions, ropes.temperatures(rt, temperature, batch.longest), scales);
    q = weighedRows(tape, q, scales);
  }
  const sinks = plan.sinks === undefined ? undefined : weightOf(weights, plan.sinks);
  const params = { heads, kvHeads, headDim, valueDim, scale, window, softCap };
  const attended = tape.attention(q, k, v, chunked(rt, batch, plan.chunk), params, { sinks, selection });
  return tape.scaled(
    gate ? tape.gated(gate, attended, { kind: 'gated', activation: 'sigmoid' }) : attended,
    plan.valueScale,
  );
}

/** q, k and v; keys and values of another block as they are, turned and normed. */
function projected(tape: Tape, plan: AttentionPlan, x: Value, state: BlockState): [Value, Value, Value] {
  const { rt, weights } = tape;
  const { heads, kvHeads, headDim, valueDim, fused, reads } = plan;
  if (reads !== undefined) {
    const kept = keptBy(rt, weights, reads, state).map((tensor) => tape.input(tape.keep(tensor)));
    for (const [i, name] of keptNames(reads).entries()) tape.read.set(name, kept[i] as Value);
    return [tape.linear(x, plan.q), ...(kept as [Value, Value])];
  }
  if (plan.keysAsValues) {
    const k = tape.linear(x, plan.k);
    return [tape.linear(x, plan.q), k, k];
  }
  if (!fused) return [plan.q, plan.k, plan.v].map((linear) => tape.linear(x, linear)) as [Value, Value, Value];
  const whole = tape.linear(x, fused.linear);
  // Head by head, the columns of each kv head are those of its queries, its key and its value.
  const runs = fused.order === 'heads' ? kvHeads : 1;
  const widths = [heads * headDim, kvHeads * headDim, kvHeads * valueDim].map((width) => width / runs);
  const all = widths.reduce((a, b) => a + b, 0);
  return widths.map((width, i) => {
    const first = widths.slice(0, i).reduce((a, b) => a + b, 0);
    return headsOf(tape, whole, runs, all, first, width);
  }) as [Value, Value, Value];
}

/** x times a number of the checkpoint, where it lies. */
export function scaledBy(tape: Tape, x: Value, factor: Tensor): Value {
  const { rt }: { rt: NativeRuntime } = tape;
  ops.scaleRows(rt, x.tensor, factor, x.tensor);
  return tape.record({ tensor: x.tensor, wanted: x.wanted }, (dy) => {
    ops.scaleRows(rt, dy, factor, dy);
    x.grad = dy;
  });
}
