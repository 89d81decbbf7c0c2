import { allocate, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { quantType, typeParams } from '../../src/core/quant-type.js';
import type { SafetensorsDtype } from '../safetensors/dtypes.js';
import type { CanonicalCheckpoint } from './read.js';

/** The codes of a module, one a byte: U8 [N,K], raw bit patterns, columns as stored. The caller disposes of it. */
export async function unpackModuleCodes(
  rt: NativeRuntime,
  checkpoint: CanonicalCheckpoint,
  name: string,
): Promise<Tensor> {
  const { shape, type } = checkpoint.module(name);
  const stream = checkpoint.require(name, 'codes');
  const codes = allocate('u8', shape);
  ops.unpackCodes(rt, stream, codes, { bits: quantType(type).bits });
  stream.dispose();
  await rt.sync();
  return codes;
}

/**
 * The weight that a module stands for: f32 [N,K], columns in the order of the source.
 * W[n][k] = (decode(q) - zero) * scale * global, 0 where a 2:4 mask drops it. The caller disposes of it.
 */
export async function dequantizeModule(
  rt: NativeRuntime,
  checkpoint: CanonicalCheckpoint,
  name: string,
): Promise<Tensor> {
  const module = checkpoint.module(name);
  const codes = await unpackModuleCodes(rt, checkpoint, name);
  const scales = checkpoint.require(name, 'scales');
  const zeros = checkpoint.part(name, 'zeros');
  const group = checkpoint.part(name, 'g_idx');
  const weight = allocate('f32', module.shape);
  const [blockN, blockK] = module.scales.block;
  ops.dequantize(
    rt,
    { codes, scales, ...(zeros && { zeros }), ...(group && { group }) },
    weight,
    typeParams(quantType(module.type)),
    {
      blockN,
      blockK,
      zero: module.zeros.kind === 'const' ? module.zeros.value : 0,
      global: checkpoint.globalScale(name),
    },
  );
  for (const tensor of [codes, scales, zeros, group]) tensor?.dispose();
  await rt.sync();
  const mask = checkpoint.part(name, 'mask');
  if (mask) dropMasked(weight, mask);
  const permutation = checkpoint.part(name, 'permutation');
  if (permutation) restoreColumns(weight, permutation);
  mask?.dispose();
  permutation?.dispose();
  return weight;
}

// A float zero point, or an integer one, need not map a dropped position to 0: the mask has the last word.
function dropMasked(weight: Tensor, mask: Tensor): void {
  const [n, k] = weight.shape as [number, number];
  const kept = mask.bytes();
  const rowBytes = Math.ceil(k / 8);
  for (let row = 0; row < n; row++) {
    const values = typed(weight.view([k], row * k));
    for (let i = 0; i < k; i++) if (!(((kept[row * rowBytes + (i >> 3)] as number) >> (i & 7)) & 1)) values[i] = 0;
  }
}

// Column j of the codes multiplies input feature permutation[j].
function restoreColumns(weight: Tensor, permutation: Tensor): void {
  const [n, k] = weight.shape as [number, number];
  const to = typed<Int32Array>(permutation);
  const stored = new Float32Array(k);
  for (let row = 0; row < n; row++) {
    const values = typed(weight.view([k], row * k));
    stored.set(values);
    for (let j = 0; j < k; j++) values[to[j] as number] = stored[j] as number;
  }
}

/** The dtype of a dequantized weight: the source's where that is a plain float, else BF16. */
export function plainDtype(sourceDtype: string): Extract<SafetensorsDtype, 'F32' | 'F16' | 'BF16'> {
  const name = sourceDtype.toUpperCase();
  return name === 'F32' || name === 'F16' || name === 'BF16' ? name : 'BF16';
}
