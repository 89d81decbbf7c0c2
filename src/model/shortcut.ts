import { ops } from '../../native/ops.js';
import { settle } from './branch.js';
import type { BlockPlan } from './plan.js';
import type { BlockState, Stage } from './program.js';

/** What experts made for a later block (BlockPlan.shortcut), f32 [T,C], among what one stage hands to the next. */
export const SHORTCUT = 'shortcut';

/** The stages of a block that hand on what the experts of one before it made; 'into': the last one adds it to the stream. */
export function shortcutStages(stages: readonly Stage[], way: BlockPlan['shortcut']): Stage[] {
  if (way !== 'over' && way !== 'into') return [...stages];
  return stages.map((stage, i) => handingOn(stage, way === 'into' && i === stages.length - 1));
}

function handingOn(stage: Stage, adds: boolean): Stage {
  return {
    ...stage,
    capture: (rt, weights, state, coverage) => stage.capture(rt, weights, without(state), coverage),
    async advance(rt, weights, state) {
      const made = state.aux[SHORTCUT];
      const next = await stage.advance(rt, weights, without(state));
      if (!made) return next;
      if (!adds) return { ...next, aux: { ...next.aux, [SHORTCUT]: made } };
      settle(rt, next);
      ops.add(rt, next.h, made, next.h);
      made.dispose();
      return next;
    },
  };
}

/** As the stage knows it; what is pending stays that of `state`, for the stage to settle. */
function without(state: BlockState): BlockState {
  const { [SHORTCUT]: _, ...aux } = state.aux;
  return { ...state, aux };
}
