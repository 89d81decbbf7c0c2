import type { NativeRuntime, Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import type { NormPlan } from '../plan.js';
import type { BlockState, BlockWeights } from '../program.js';
import { applyLinearTo, applyNorm, linearTensors, normTensors, weightOf } from '../weights.js';
import { shortConv, shortConvTensors } from './conv.js';
import type { Mamba2Core, MambaCore } from './plan-mamba.js';
import { pastOf } from './state.js';

type Shapes = [string, readonly number[]][];

export function mamba2Tensors({ conv, rate, bias, skip, heads, norm }: Mamba2Core): Shapes {
  // One weight of all groups one after another.
  const gain: Shapes = norm?.weight === undefined ? [] : [[norm.weight, [norm.size * norm.turns]]];
  return [...shortConvTensors(conv), [rate, [heads]], [bias, [heads]], [skip, [heads]], ...gain];
}

export function mambaTensors(core: MambaCore): Shapes {
  const { conv, select, step, rate, bias, skip, headDim, size, stepNorm, bNorm, cNorm } = core;
  return [
    ...shortConvTensors(conv),
    ...[select, step].flatMap(linearTensors),
    [rate, [headDim, size]],
    [bias, [headDim]],
    [skip, [headDim]],
    ...[stepNorm, bNorm, cNorm].flatMap(normTensors),
  ];
}

/** Columns as a matrix of their own. */
function columnsOf(rt: NativeRuntime, whole: Tensor, first: number, width: number): Tensor {
  const y = rt.allocate(whole.dtype, [whole.shape[0] as number, width]);
  ops.sliceColumns(rt, whole, y, { first });
  return y;
}

interface Scanned {
  readonly x: Tensor;
  readonly b: Tensor;
  readonly c: Tensor;
  readonly step: Tensor;
}

/** The scan of one block, f32 [T, heads * headDim]; disposes of what it reads. */
function scanned(
  rt: NativeRuntime,
  weights: BlockWeights,
  core: Mamba2Core | MambaCore,
  read: Scanned,
  state: BlockState,
): Tensor {
  const { heads, headDim, groups, size } = core;
  const y = rt.allocate('f32', read.x.shape);
  const [rate, bias, skip] = [core.rate, core.bias, core.skip].map((name) => weightOf(weights, name));
  const past = pastOf(state, 'scan', [heads, size, headDim]);
  const bounds =
    core.kind === 'mamba2' ? { least: core.least, ...(Number.isFinite(core.most) && { most: core.most }) } : {};
  const tensors = { ...read, rate: rate as Tensor, bias: bias as Tensor, skip: skip as Tensor };
  ops.selectiveScan(rt, tensors, y, past, { heads, headDim, groups, size, ...bounds });
  for (const tensor of Object.values(read)) tensor.dispose();
  return y;
}

/** Mamba-2's: `whole` is z, x, B, C and the steps beside each other. */
export function mixMamba2(
  rt: NativeRuntime,
  weights: BlockWeights,
  core: Mamba2Core,
  [whole]: readonly Tensor[],
  state: BlockState,
): Tensor {
  const { heads, headDim, groups, size, conv, norm } = core;
  const [channels, shared, all] = [heads * headDim, groups * size, whole as Tensor];
  for (const { first, width, factor } of core.scales) ops.scaleRows(rt, all, undefined, all, { factor, first, width });
  const convolved = shortConv(rt, weights, conv, 'conv', all, state, { act: 'silu', first: channels });
  const read = {
    x: columnsOf(rt, convolved, 0, channels),
    b: columnsOf(rt, convolved, channels, shared),
    c: columnsOf(rt, convolved, channels + shared, shared),
    step: columnsOf(rt, all, channels + conv.channels, heads),
  };
  convolved.dispose();
  const y = scanned(rt, weights, core, read, state);
  const gate = columnsOf(rt, all, 0, channels);
  if (core.normFirst) normGroups(rt, weights, norm, y);
  ops.gatedActivation(rt, gate, y, y, { act: 'silu' });
  if (!core.normFirst) normGroups(rt, weights, norm, y);
  gate.dispose();
  return y;
}

/** The norm of each group's channels of y f32 [T,C], in place. */
function normGroups(rt: NativeRuntime, weights: BlockWeights, norm: NormPlan | undefined, y: Tensor): void {
  if (!norm) return;
  const gain = weightOf(weights, norm.weight as string);
  const [width, eps] = [norm.size, norm.epsilon];
  if (norm.turns === 1) {
    ops.rmsnorm(rt, y, gain, y, { eps });
    return;
  }
  for (let first = 0; first < norm.turns * width; first += width) {
    const own = gain.view([width], first);
    ops.rmsnorm(rt, y, own, y, { eps, first });
    own.dispose();
  }
}

/** Mamba's: `whole` is x and z beside each other. */
export function mixMamba(
  rt: NativeRuntime,
  weights: BlockWeights,
  core: MambaCore,
  [whole]: readonly Tensor[],
  state: BlockState,
): Tensor {
  const { headDim: channels, size, rank, conv } = core;
  const all = whole as Tensor;
  const x = shortConv(rt, weights, conv, 'conv', all, state, { act: 'silu', first: 0 });
  const chosen = applyLinearTo(rt, weights, core.select, x);
  const [narrow, b, c] = [
    columnsOf(rt, chosen, 0, rank),
    columnsOf(rt, chosen, rank, size),
    columnsOf(rt, chosen, rank + size, size),
  ];
  applyNorm(rt, weights, core.stepNorm, narrow, true);
  applyNorm(rt, weights, core.bNorm, b, true);
  applyNorm(rt, weights, core.cNorm, c, true);
  const step = applyLinearTo(rt, weights, core.step, narrow);
  for (const tensor of [chosen, narrow]) tensor.dispose();
  const y = scanned(rt, weights, core, { x, b, c, step }, state);
  const gate = columnsOf(rt, all, channels, channels);
  ops.gatedActivation(rt, gate, y, y, { act: 'silu' });
  gate.dispose();
  return y;
}
