import type { MlaPlan } from '../model/plan-mla.js';
import type { Batch } from '../model/program.js';
import type { RopeCache } from '../model/rope-cache.js';
import { headsOf, joinHeads } from './heads.js';
import type { Tape, Value } from './tape.js';

/** What o of latent attention reads, of its normed input x (src/model/mla.ts). */
export function passLatent(tape: Tape, plan: MlaPlan, ropes: RopeCache, x: Value, batch: Batch): Value {
  const { query, kvA, kvNorm, kvB, heads, latent, plain, rotary, value, latentScale, rope } = plan;
  const headDim = plain + rotary;
  const turned = (part: Value, count: number): Value =>
    rope ? tape.rope(part, count, rotary, ropes.forBatch(tape.rt, rope, batch)) : part;
  const direct = query.kind === 'direct';
  const given = direct
    ? tape.linear(x, query.linear)
    : tape.linear(tape.norm(tape.linear(x, query.a), query.norm), query.b);
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
  return tape.attention(q, k, v, batch, params, undefined);
}
