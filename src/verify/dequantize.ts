import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import type { CanonicalModule } from '../../formats/canonical/schema.js';
import { allocate, type NativeRuntime, type Tensor } from '../../native/binding.js';
import { quantType, typeParams } from '../core/quant-type.js';
import type { Decoded, DecodedPart } from './decode.js';
import { settle } from './native.js';

type Float = 'f32' | 'f16' | 'bf16';

/** The weight [N, K] that decoded parts stand for, by the verifier's arithmetic. The caller disposes of it. */
export async function dequantized(
  rt: NativeRuntime,
  { type, shape, scales, zeros }: Pick<CanonicalModule, 'type' | 'shape' | 'scales' | 'zeros'>,
  { parts, group = parts.get('g_idx') }: Pick<Decoded, 'parts' | 'group'>,
  dtype: Float,
): Promise<Tensor> {
  const weight = allocate(dtype, shape);
  const optional = {
    hasZeros: parts.get('zeros'),
    hasGroup: group,
    hasPermutation: parts.get('permutation'),
    hasGlobal: parts.get('global_scale'),
    hasMask: parts.get('mask'),
  };
  const given = Object.values(optional).filter((tensor) => tensor !== undefined);
  const [blockN, blockK] = scales.block;
  rt.enqueue('verify_dequantize', [parts.get('codes')!, parts.get('scales')!, ...given], [weight], {
    ...typeParams(quantType(type)),
    ...{ blockN, blockK, zero: zeros.kind === 'const' ? zeros.value : 0 },
    ...Object.fromEntries(Object.entries(optional).map(([name, tensor]) => [name, tensor !== undefined])),
  });
  await settle(rt);
  return weight;
}

/** The weight that a module of a quantized checkpoint stands for. The caller disposes of it. */
export async function quantizedWeight(
  rt: NativeRuntime,
  canonical: CanonicalCheckpoint,
  name: string,
  dtype: Float,
): Promise<Tensor> {
  const parts = new Map<DecodedPart, Tensor>();
  for (const part of ['codes', 'scales', 'zeros', 'g_idx', 'permutation', 'global_scale', 'mask'] as const) {
    const tensor = canonical.part(name, part);
    if (tensor) parts.set(part, tensor);
  }
  const weight = await dequantized(rt, canonical.module(name), { parts }, dtype);
  for (const tensor of parts.values()) tensor.dispose();
  return weight;
}
