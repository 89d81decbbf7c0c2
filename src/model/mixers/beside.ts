import type { Tensor } from '../../../native/binding.js';
import { attentionStages, outputStage } from '../attention.js';
import type { AttentionPlan } from '../plan.js';
import type { Stage } from '../program.js';
import type { RopeCache } from '../rope-cache.js';
import type { RecurrentPlan } from './plan.js';
import { recurrentStages } from './stages.js';

/** What o of the recurrent layer reads, f32 [T, K], while it waits. */
interface Both {
  readonly attention: Tensor;
  readonly beside: Tensor;
}

/** Attention and a recurrent layer that read one norm of the stream, each with feeds of its own, and are added to it, attention first. */
export function besideStages(plan: AttentionPlan, beside: RecurrentPlan, ropes: RopeCache): Stage[] {
  const [qkv] = attentionStages(plan, ropes) as [Stage, Stage];
  const [into] = recurrentStages(beside) as [Stage, Stage];
  const [out, last] = [outputStage(plan), outputStage(beside)];
  const first: Stage = {
    id: 'qkv',
    feeds: [...qkv.feeds, ...into.feeds],
    async capture(rt, weights, state) {
      const captured = await qkv.capture(rt, weights, state);
      return new Map([...captured, ...(await into.capture(rt, weights, state))]);
    },
    async advance(rt, weights, state) {
      const made = await into.advance(rt, weights, state);
      const next = await qkv.advance(rt, weights, state);
      return { ...next, aux: { ...next.aux, beside: made.aux.attention as Tensor } };
    },
  };
  const second: Stage = {
    id: 'o',
    feeds: [...out.feeds, ...last.feeds.map((feed) => ({ ...feed, id: 'beside.o' }))],
    async capture(_rt, _weights, state) {
      const both = state.aux as unknown as Both;
      return new Map([
        ['o', both.attention.view(both.attention.shape)],
        ['beside.o', both.beside.view(both.beside.shape)],
      ]);
    },
    async advance(rt, weights, state) {
      const { beside: waits, ...aux } = state.aux as unknown as Both;
      const next = await out.advance(rt, weights, { ...state, aux: { ...aux } });
      return last.advance(rt, weights, { ...next, aux: { ...next.aux, attention: waits } });
    },
  };
  return [first, second];
}
