import { ops } from '../../native/ops.js';
import { branchInput, settle } from './branch.js';
import { perLayerBranch, perLayerEndTensors } from './per-layer.js';
import type { BlockPlan } from './plan.js';
import type { Stage } from './program.js';
import { weightOf } from './weights.js';

/** Tensors of what comes behind the last stage of a block. */
export function endTensors({ perLayer, scalar }: BlockPlan): [string, readonly number[]][] {
  return [
    ...(perLayer ? perLayerEndTensors(perLayer) : []),
    ...(scalar === undefined ? [] : [[scalar, [1]] as [string, number[]]]),
  ];
}

/** A block's last stage with what comes behind it: linears that no feed names, for they are small and an error in them reaches every block. */
export function ended(last: Stage, { perLayer, scalar }: BlockPlan): Stage {
  if (!perLayer && scalar === undefined) return last;
  return {
    ...last,
    async advance(rt, weights, state) {
      const next = await last.advance(rt, weights, state);
      settle(rt, next);
      const { h } = next;
      if (perLayer) {
        const x = branchInput(rt, weights, undefined, next);
        const y = perLayerBranch(rt, weights, perLayer, next, x);
        ops.add(rt, h, y, h);
        for (const tensor of [x, y]) tensor.dispose();
      }
      if (scalar !== undefined) ops.scaleRows(rt, h, weightOf(weights, scalar), h);
      return next;
    },
  };
}
