import type { NativeRuntime, Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import type { BlockState, BlockWeights } from '../program.js';
import { weightOf } from '../weights.js';
import type { ConvCore } from './plan.js';
import type { ShortConvPlan } from './plan-conv.js';
import { pastOf } from './state.js';

export function shortConvTensors({ weight, bias, channels, taps }: ShortConvPlan): [string, readonly number[]][] {
  const all: [string, readonly number[]][] = [[weight, [channels, 1, taps]]];
  return bias === undefined ? all : [...all, [bias, [channels]]];
}

/** Where the columns stand that are convolved, and what multiplies them before and after. */
export interface ConvColumns {
  readonly act: 'none' | 'silu';
  readonly first?: number;
  readonly times?: number;
  readonly gate?: number;
}

/** The convolution of columns of x f32 [T, ...]: a new tensor f32 [T, channels]. `name`: of its state in the block. */
export function shortConv(
  rt: NativeRuntime,
  weights: BlockWeights,
  plan: ShortConvPlan,
  name: string,
  x: Tensor,
  state: BlockState,
  columns: ConvColumns,
): Tensor {
  const { channels, taps } = plan;
  const y = rt.allocate('f32', [x.shape[0] as number, channels]);
  const weight = weightOf(weights, plan.weight).view([channels, taps]);
  const bias = plan.bias === undefined ? undefined : weightOf(weights, plan.bias);
  ops.shortConv(rt, x, { weight, bias }, y, pastOf(state, name, [taps - 1, channels]), columns);
  weight.dispose();
  return y;
}

/** LFM2's: of b, c and x beside each other c * conv(b * x). */
export function mixConv(
  rt: NativeRuntime,
  weights: BlockWeights,
  { conv }: ConvCore,
  [bcx]: readonly Tensor[],
  state: BlockState,
): Tensor {
  const { channels } = conv;
  return shortConv(rt, weights, conv, 'conv', bcx as Tensor, state, {
    act: 'none',
    first: 2 * channels,
    times: 0,
    gate: channels,
  });
}
