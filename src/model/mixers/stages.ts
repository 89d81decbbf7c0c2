import type { NativeRuntime, Tensor } from '../../../native/binding.js';
import { outputStage } from '../attention.js';
import { branchInput, branchTensors } from '../branch.js';
import type { BlockState, BlockWeights, Stage } from '../program.js';
import { applyLinear, asInput, linearRef, linearTensors } from '../weights.js';
import { mixConv, shortConvTensors } from './conv.js';
import { deltaTensors, mixDelta } from './delta.js';
import { mamba2Tensors, mambaTensors, mixMamba, mixMamba2 } from './mamba.js';
import type { MixerCore, RecurrentPlan } from './plan.js';

/** What a kind of core consists of beside linears that read the stream, and what o reads, made of what those make, in order. */
interface Mixer<C extends MixerCore> {
  tensors(core: C): [string, readonly number[]][];
  mix(rt: NativeRuntime, weights: BlockWeights, core: C, made: readonly Tensor[], state: BlockState): Tensor;
}

const MIXERS: { readonly [K in MixerCore['kind']]: Mixer<Extract<MixerCore, { kind: K }>> } = {
  conv: { tensors: ({ conv }) => shortConvTensors(conv), mix: mixConv },
  delta: { tensors: deltaTensors, mix: mixDelta },
  mamba2: { tensors: mamba2Tensors, mix: mixMamba2 },
  mamba: { tensors: mambaTensors, mix: mixMamba },
};

const mixerOf = (core: MixerCore) => MIXERS[core.kind] as Mixer<MixerCore>;

export function recurrentTensors(plan: RecurrentPlan): [string, readonly number[]][] {
  const { feed, kept, o, core } = plan;
  return [...branchTensors(plan), ...[...feed, ...kept, o].flatMap(linearTensors), ...mixerOf(core).tensors(core)];
}

/** A recurrent mixer as two stages: `in` up to what o reads, `o` back into the residual stream. */
export function recurrentStages(plan: RecurrentPlan): Stage[] {
  const { feed, kept, core } = plan;
  const into: Stage = {
    id: 'in',
    // What they make in f32, parts of it as matrices of their own, and those convolved.
    temporaryBytes: 12 * feed.reduce((sum, { n }) => sum + n, 0),
    feeds: [{ id: 'in', linears: feed.map((linear) => linearRef(linear)) }],
    async capture(rt, weights, state) {
      return new Map([['in', branchInput(rt, weights, plan.norm, state)]]);
    },
    async advance(rt, weights, state) {
      const x = branchInput(rt, weights, plan.norm, state);
      const made = [...feed, ...kept].map((linear) => applyLinear(rt, weights, linear, x));
      x.dispose();
      const mixed = mixerOf(core).mix(rt, weights, core, made, state);
      const attention = asInput(rt, mixed);
      for (const tensor of [...made, mixed]) tensor.dispose();
      return { ...state, aux: { attention } };
    },
  };
  return [into, outputStage(plan)];
}
