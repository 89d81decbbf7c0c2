import type { Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { convWeights } from '../model/mixers/delta.js';
import type { RecurrentPlan } from '../model/mixers/plan.js';
import type { DeltaCore } from '../model/mixers/plan-delta.js';
import type { Slice } from '../model/mixers/plan-delta-linears.js';
import type { Batch } from '../model/program.js';
import { weightOf } from '../model/weights.js';
import { convolution, smoothed } from './convolution.js';
import { headsOf } from './heads.js';
import { passScan } from './scans.js';
import type { Tape, Value } from './tape.js';

/** What a recurrent layer's last linear reads, of its normed input x. */
export function passMixer(tape: Tape, { feed, kept, core }: RecurrentPlan, x: Value, batch: Batch): Value {
  const made = [...feed, ...kept].map((linear) => tape.linear(x, linear));
  if (core.kind === 'conv') return convolution(tape, core, made[0] as Value, batch);
  return core.kind === 'delta' ? delta(tape, core, made, batch) : passScan(tape, core, made[0] as Value, batch);
}

function delta(tape: Tape, core: DeltaCore, projected: readonly Value[], batch: Batch): Value {
  const { rt, weights } = tape;
  const made = [...projected];
  for (const { from, linear } of core.behind) made.push(tape.linear(projected[from] as Value, linear));
  const part = ({ from, groups, first, width }: Slice): Value => {
    const x = made[from] as Value;
    return headsOf(tape, x, groups, (x.tensor.shape[1] as number) / groups, first, width);
  };
  const { heads, keyHeads, keyDim, valueDim, strength, inputs } = core;
  const convs = convWeights(rt, weights, core).map((tensor) => tape.keep(tensor));
  const [q, k, v] = (['q', 'k', 'v'] as const).map((name, i) =>
    smoothed(tape, convs[i] as Tensor, part(inputs[name]), batch),
  ) as [Value, Value, Value];
  const [beta, decay, gate] = [part(inputs.beta), part(inputs.decay), part(inputs.gate)];
  const values = { q, k, v, decay, beta };
  const constants = {
    rate: tape.keep(weightOf(weights, core.rate).view([heads])),
    bias: weightOf(weights, core.bias),
  };
  const given = Object.fromEntries(Object.entries(values).map(([name, { tensor }]) => [name, tensor]));
  const t = { ...(given as Record<keyof typeof values, Tensor>), ...constants };
  const sizes = { heads, keyHeads, keyDim, valueDim, strength };
  const { starts } = batch;
  const y = rt.allocate('f32', v.tensor.shape);
  ops.gatedDelta(rt, t, y, { starts }, sizes);
  const wanted = Object.values(values).some((value) => value.wanted);
  const ruled = tape.record(tape.made(y, wanted), (dy) => {
    const gradient = ({ tensor }: Value) => tape.keep(rt.allocate('f32', tensor.shape));
    const [dq, dk, dv, ddecay, dbeta] = [q, k, v, decay, beta].map(gradient) as [
      Tensor,
      Tensor,
      Tensor,
      Tensor,
      Tensor,
    ];
    ops.gatedDeltaBackward(rt, { ...t, starts, dy }, { dq, dk, dv, ddecay, dbeta }, sizes);
    [q.grad, k.grad, v.grad, decay.grad, beta.grad] = [dq, dk, dv, ddecay, dbeta];
  });
  return tape.gated(gate, tape.norm(ruled, core.norm), { kind: 'gated', activation: core.gateActivation });
}
