import { allocate, type NativeRuntime, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { INPUT_TYPES, secondLevel } from '../core/input-type.js';
import { typeParams } from '../core/quant-type.js';
import type { LinearPlan } from './plan.js';
import type { BlockWeights } from './program.js';
import type { ActivationForm, MixedWeight } from './source.js';

/** Codes I8 [T,K] and scales f32 [T,K/128] of x [T,K] in the runtime's activation dtype; the caller disposes of them. */
function codesOf(rt: NativeRuntime, x: Tensor, form: MixedWeight['form']): { codes: Tensor; scales: Tensor } {
  const [rows, k] = x.shape as [number, number];
  const { bits, clip } = form.blocks;
  const tables = {
    bits: uploadTyped(rt, 'u8', [bits.length], bits),
    clip: uploadTyped(rt, 'f32', [clip.length], clip),
    ...(form.order && { order: uploadTyped(rt, 'i32', [k], form.order) }),
  };
  const codes = rt.allocate('i8', [rows, k]);
  const scales = rt.allocate('f32', [rows, bits.length]);
  ops.quantizeActivations(rt, x, tables, { codes, scales });
  for (const table of Object.values(tables)) table.dispose();
  return { codes, scales };
}

/**
 * x [T,K] in the runtime's activation dtype as a linear of this form reads it, gathered, or rounded to its codes or its type: a new tensor
 * of that dtype. Numbers of 16 bits round what codes and scales make once more.
 */
export function asRead(rt: NativeRuntime, x: Tensor, form: ActivationForm): Tensor {
  const { blocks, rounded } = form;
  if (rounded) return rounding(rt, x, rounded);
  const read = rt.allocate(x.dtype, x.shape);
  if (blocks) {
    const { codes, scales } = codesOf(rt, x, { ...form, blocks });
    ops.dequantizeActivations(rt, { codes, scales }, read);
    for (const tensor of [codes, scales]) tensor.dispose();
    return read;
  }
  const order = uploadTyped(rt, 'i32', [x.shape[1] as number], form.order as Int32Array);
  ops.gatherColumns(rt, x, order, read);
  order.dispose();
  return read;
}

/** x in numbers of few bits, computed in f32. */
function rounding(rt: NativeRuntime, x: Tensor, rounded: Required<ActivationForm>['rounded']): Tensor {
  const own = INPUT_TYPES[rounded.type];
  const wide = rt.allocate('f32', x.shape);
  const from = x.dtype === 'f32' ? x : wide;
  if (x.dtype !== 'f32') ops.cast(rt, x, wide);
  const p = { groupSize: own.block, scaleDtype: own.scaleDtype, global: secondLevel(own, rounded.most) };
  ops.roundInputs(rt, from, wide, typeParams(own.type), p);
  if (x.dtype === 'f32') return wide;
  const read = rt.allocate(x.dtype, x.shape);
  ops.cast(rt, wide, read);
  wide.dispose();
  return read;
}

export function disposeMixed({ codes, scales }: MixedWeight): void {
  for (const tensor of [codes, scales]) tensor.dispose();
}

/** What applyLinear() does, in integers: ops.quantizeActivations, then ops.gemmW4ax. x f32 [T,K]; the result is f32. */
export function applyMixed(
  rt: NativeRuntime,
  weights: BlockWeights,
  linear: LinearPlan,
  mixed: MixedWeight,
  x: Tensor,
  into?: { y: Tensor; accumulate: boolean },
): Tensor {
  const read = codesOf(rt, x, mixed.form);
  const y = into?.y ?? rt.allocate('f32', [x.shape[0] as number, linear.n]);
  const stored = linear.bias ? weights.get(`${linear.name}.bias`) : undefined;
  const bias = stored && allocate('f32', stored.shape);
  if (stored && bias) ops.cast(rt, stored, bias);
  ops.gemmW4ax(rt, read, mixed, bias, y, { accumulate: into?.accumulate ?? false });
  for (const tensor of [read.codes, read.scales, bias]) tensor?.dispose();
  return y;
}
