import { indexInputs, type Selection, select } from '../model/indexer.js';
import type { MlaPlan } from '../model/plan-mla.js';
import type { BlockState } from '../model/program.js';
import type { RopeCache } from '../model/rope-cache.js';
import { headsOf, joinHeads } from './heads.js';
import type { Tape, Value } from './tape.js';

/** What o of latent attention reads, of its normed input x (src/model/mla.ts). */
export function passLatent(
  tape: Tape,
  plan: MlaPlan,
  ropes: RopeCache,
  x: Value,
  state: BlockState,
  choose: (make: () => Selection | undefined) => Selection | undefined,
): Value {
  const { batch } = state;
  const { query, kvA, kvNorm, kvB, heads, latent, plain, rotary, value, latentScale, rope } = plan;
  const headDim = plain + rotary;
  const turned = (part: Value, count: number): Value =>
    rope ? tape.rope(part, count, rotary, ropes.forBatch(tape.rt, rope, batch)) : part;
  const read = query.kind === 'latent' ? tape.norm(tape.linear(x, query.a), query.norm) : x;
  const given = tape.linear(read, query.kind === 'latent' ? query.b : query.linear);
  const q = joinHeads(
    tape,
    [
      { x: headsOf(tape, given, heads, headDim, 0, plain), width: plain, to: 0 },
      { x: turned(headsOf(tape, given, heads, headDim, plain, rotary), heads), width: rotary, to: plain },
    ],
    heads,
    headDim,
  );
  const kv = tape.linear(x, kvA);
  const compressed = tape.norm(headsOf(tape, kv, 1, latent + rotary, 0, latent), kvNorm);
  const both = tape.linear(tape.scaled(compressed, latentScale), kvB);
  const k = joinHeads(
    tape,
    [
      { x: headsOf(tape, both, heads, plain + value, 0, plain), width: plain, to: 0 },
      { x: turned(headsOf(tape, kv, 1, latent + rotary, latent, rotary), 1), width: rotary, to: plain, shared: true },
    ],
    heads,
    headDim,
  );
  const v = headsOf(tape, both, heads, plain + value, plain, value);
  const params = { heads, kvHeads: heads, headDim, valueDim: value, scale: plan.scale };
  const selection = choose(() => selectionOf(tape, plan, ropes, x, read, state));
  return tape.attention(q, k, v, batch, params, { selection });
}

/** The keys that an indexer chooses from x and the queries' compressed vectors. The caller disposes of them. */
function selectionOf(
  { rt, weights }: Tape,
  { indexer, query }: MlaPlan,
  ropes: RopeCache,
  x: Value,
  read: Value,
  state: BlockState,
): Selection | undefined {
  if (!indexer || query.kind === 'direct') return undefined;
  const none = { indexKey: x.tensor };
  const inputs = indexer.kind === 'own' ? indexInputs(rt, weights, indexer, x.tensor) : none;
  const selection = select(rt, weights, indexer, { ...inputs, read: read.tensor }, state, ropes);
  if (inputs !== none) for (const tensor of Object.values(inputs)) tensor.dispose();
  return selection;
}
