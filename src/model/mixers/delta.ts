import type { NativeRuntime, Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import { oneAfterAnother } from '../kernels/join.js';
import type { BlockState, BlockWeights } from '../program.js';
import { applyNorm, normTensors, weightOf } from '../weights.js';
import { shortConvTensors } from './conv.js';
import type { DeltaCore, Slice } from './plan-delta.js';
import { pastOf } from './state.js';

export function deltaTensors({ convs, rate, bias, heads, gates, norm }: DeltaCore): [string, readonly number[]][] {
  return [...convs.flatMap(shortConvTensors), [rate, [heads]], [bias, [gates]], ...normTensors(norm)];
}

/** The gated delta rule: of `made`, what the projections make, what o reads, f32 [T, heads * valueDim]. */
export function mixDelta(
  rt: NativeRuntime,
  weights: BlockWeights,
  core: DeltaCore,
  made: readonly Tensor[],
  state: BlockState,
): Tensor {
  const { heads, keyHeads, keyDim, valueDim, inputs, strength, norm, gateActivation: act } = core;
  const [q, k, v] = convolved(rt, weights, core, made, state);
  const [beta, decay, gate] = (['beta', 'decay', 'gate'] as const).map((name) => sliced(rt, inputs[name], made)) as [
    Tensor,
    Tensor,
    Tensor,
  ];
  const y = rt.allocate('f32', v.shape);
  const [rate, bias] = [weightOf(weights, core.rate), weightOf(weights, core.bias)];
  const past = pastOf(state, 'delta', [heads, keyDim, valueDim]);
  const sizes = { heads, keyHeads, keyDim, valueDim, strength };
  ops.gatedDelta(rt, { q, k, v, decay, beta, rate, bias }, y, past, sizes);
  const rows = y.view([(y.shape[0] as number) * heads, valueDim]);
  applyNorm(rt, weights, norm, rows, true);
  ops.gatedActivation(rt, gate, y, y, { act });
  for (const tensor of [q, k, v, beta, decay, gate, rows]) tensor.dispose();
  return y;
}

/** q, k and v behind their convolutions. */
function convolved(
  rt: NativeRuntime,
  weights: BlockWeights,
  { convs, inputs }: DeltaCore,
  made: readonly Tensor[],
  state: BlockState,
): [Tensor, Tensor, Tensor] {
  const { taps } = convs[0]!;
  const channels = convs.reduce((sum, conv) => sum + conv.channels, 0);
  const tensors = convs.map(({ weight }) => weightOf(weights, weight));
  const whole = tensors.length === 1 ? tensors[0]! : oneAfterAnother(rt, tensors, [channels, taps]);
  let row = 0;
  const parts = (['q', 'k', 'v'] as const).map((name) => {
    const x = sliced(rt, inputs[name], made);
    const width = x.shape[1] as number;
    const y = rt.allocate('f32', x.shape);
    const weight = whole.view([width, taps], row * taps);
    ops.shortConv(rt, x, { weight }, y, pastOf(state, name, [taps - 1, width]), { act: 'silu' });
    for (const tensor of [x, weight]) tensor.dispose();
    row += width;
    return y;
  });
  if (tensors.length > 1) whole.dispose();
  return parts as [Tensor, Tensor, Tensor];
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
