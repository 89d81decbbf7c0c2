import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { allocate, type NativeRuntime, type Tensor } from '../../native/binding.js';
import { quantType, typeParams } from '../core/quant-type.js';
import { dequantize, settle } from './native.js';

/** The weight [N, K] that a module of a quantized checkpoint stands for, by the verifier's arithmetic. The caller disposes of it. */
export async function quantizedWeight(
  rt: NativeRuntime,
  canonical: CanonicalCheckpoint,
  name: string,
  dtype: 'f32' | 'f16' | 'bf16',
): Promise<Tensor> {
  const { type, shape, scales, zeros } = canonical.module(name);
  const weight = allocate(dtype, shape);
  const inputs = {
    codes: canonical.require(name, 'codes'),
    scales: canonical.require(name, 'scales'),
    zeros: canonical.part(name, 'zeros'),
    group: canonical.part(name, 'g_idx'),
    permutation: canonical.part(name, 'permutation'),
    global: canonical.part(name, 'global_scale'),
    mask: canonical.part(name, 'mask'),
  };
  const [blockN, blockK] = scales.block;
  const zero = zeros.kind === 'const' ? zeros.value : 0;
  dequantize(rt, inputs, weight, typeParams(quantType(type)), { blockN, blockK, zero });
  await settle(rt);
  for (const tensor of Object.values(inputs)) tensor?.dispose();
  return weight;
}
