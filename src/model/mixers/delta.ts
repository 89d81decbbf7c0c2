import type { NativeRuntime, Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { oneAfterAnother } from '../kernels/join.js';
import type { BlockState, BlockWeights } from '../program.js';
import { applyLinearTo, applyNorm, linearTensors, normTensors, weightOf } from '../weights.js';
import { shortConvTensors } from './conv.js';
import type { DeltaCore } from './plan-delta.js';
import type { Slice } from './plan-delta-linears.js';
import { pastOf } from './state.js';

export function deltaTensors(core: DeltaCore): [string, readonly number[]][] {
  const { convs, rate, rateShape, bias, gates, norm, behind } = core;
  return [
    ...behind.flatMap(({ linear }) => linearTensors(linear)),
    ...convs.flatMap(shortConvTensors),
    [rate, rateShape],
    [bias, [gates]],
    ...normTensors(norm),
  ];
}

/** The gated delta rule: of `read`, what the projections make, what o reads, f32 [T, heads * valueDim]. */
export function mixDelta(
  rt: NativeRuntime,
  weights: BlockWeights,
  core: DeltaCore,
  read: readonly Tensor[],
  state: BlockState,
): Tensor {
  const behind = core.behind.map(({ from, linear }) => applyLinearTo(rt, weights, linear, read[from] as Tensor));
  const made = [...read, ...behind];
  const { heads, keyHeads, keyDim, valueDim, inputs, strength, norm, gateActivation: act } = core;
  const [q, k, v] = convolved(rt, weights, core, made, state);
  const [beta, decay, gate] = (['beta', 'decay', 'gate'] as const).map((name) => sliced(rt, inputs[name], made)) as [
    Tensor,
    Tensor,
    Tensor,
  ];
  const y = rt.allocate('f32', v.shape);
  const [rate, bias] = [weightOf(weights, core.rate).view([heads]), weightOf(weights, core.bias)];
  const past = pastOf(state, 'delta', [heads, keyDim, valueDim]);
  const sizes = { heads, keyHeads, keyDim, valueDim, strength };
  ops.gatedDelta(rt, { q, k, v, decay, beta, rate, bias }, y, past, sizes);
  const rows = y.view([(y.shape[0] as number) * heads, valueDim]);
  applyNorm(rt, weights, norm, rows, true);
  ops.gatedActivation(rt, gate, y, y, { act });
  for (const tensor of [q, k, v, beta, decay, gate, rows, rate, ...behind]) tensor.dispose();
  return y;
}

/** Weights [channels, taps] of the convolutions of q, k and v; the caller disposes of them. */
export function convWeights(rt: NativeRuntime, weights: BlockWeights, { convs, inputs }: DeltaCore): Tensor[] {
  const { taps } = convs[0]!;
  const widths = (['q', 'k', 'v'] as const).map((name) => inputs[name].groups * inputs[name].width);
  const tensors = convs.map(({ weight }) => weightOf(weights, weight));
  const alone = convs.length === 3 && convs.every(({ channels }, i) => channels === widths[i]);
  const all = widths.reduce((sum, width) => sum + width, 0);
  const whole = alone || tensors.length === 1 ? undefined : oneAfterAnother(rt, tensors, [all, taps]);
  let row = 0;
  const views = widths.map((width, i) => {
    const from = alone ? (tensors[i] as Tensor) : (whole ?? (tensors[0] as Tensor));
    const view = from.view([width, taps], alone ? 0 : row * taps);
    row += width;
    return view;
  });
  whole?.dispose();
  return views;
}

/** q, k and v behind their convolutions. */
function convolved(
  rt: NativeRuntime,
  weights: BlockWeights,
  core: DeltaCore,
  made: readonly Tensor[],
  state: BlockState,
): [Tensor, Tensor, Tensor] {
  const all = convWeights(rt, weights, core);
  return (['q', 'k', 'v'] as const).map((name, i) => {
    const x = sliced(rt, core.inputs[name], made);
    const weight = all[i] as Tensor;
    const [width, taps] = weight.shape as [number, number];
    const y = rt.allocate('f32', x.shape);
    ops.shortConv(rt, x, { weight }, y, pastOf(state, name, [taps - 1, width]), { act: 'silu' });
    for (const tensor of [x, weight]) tensor.dispose();
    return y;
  }) as [Tensor, Tensor, Tensor];
}

/** A slice as a matrix of its own. */
function sliced(rt: NativeRuntime, { from, groups, first, width }: Slice, made: readonly Tensor[]): Tensor {
  const matrix = made[from] as Tensor;
  const [tokens, columns] = matrix.shape as [number, number];
  if (columns === groups * width) return matrix.view(matrix.shape);
  const y = rt.allocate(matrix.dtype, [tokens, groups * width]);
  ops.copyHeads(rt, matrix, y, { heads: groups, width, fromDim: columns / groups, from: first, toDim: width, to: 0 });
  return y;
}
