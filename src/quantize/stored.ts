import { type NativeRuntime, readTyped, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { groupSizeOf } from '../core/granularity.js';
import { typeParams } from '../core/quant-type.js';
import { constantZero, zerosOf } from './grid.js';
import type { QuantizedModule } from './result.js';
import type { QuantScheme } from './scheme.js';

/** The zero points of a solver, f32 [N,G], in the dtype that the scheme stores. */
export function storedZeros(
  rt: NativeRuntime,
  scheme: QuantScheme,
  zero: Float32Array,
  shape: readonly number[],
): Tensor | undefined {
  const kind = zerosOf(scheme);
  if (kind.kind !== 'int') return undefined;
  return kind.dtype === 'u8'
    ? uploadTyped(rt, 'u8', shape, Uint8Array.from(zero))
    : uploadTyped(rt, 'i16', shape, Int16Array.from(zero));
}

/** tr(D H Dᵀ) and tr(W H Wᵀ) over some rows of a weight, D = W - What. */
export interface ErrorSums {
  readonly error: number;
  readonly norm: number;
}

/** What the quantized rows err by, for inputs of second moments H [K,K]. */
export async function errorSums(rt: NativeRuntime, weight: Tensor, quantized: Tensor, h: Tensor): Promise<ErrorSums> {
  const wide = rt.allocate('f32', weight.shape);
  const sums = rt.allocate('f64', [2]);
  try {
    ops.cast(rt, weight, wide);
    ops.moduleError(rt, wide, quantized, h, sums);
    const [error, norm] = (await readTyped<Float64Array>(rt, sums)) as unknown as [number, number];
    return { error, norm };
  } finally {
    for (const tensor of [wide, sums]) tensor.dispose();
  }
}

/** W f32 [N,K] as anyone who reads the checkpoint computes it. */
export function dequantizeResult(rt: NativeRuntime, result: QuantizedModule): Tensor {
  const { scheme, shape } = result;
  const codes = rt.allocate('u8', shape);
  const weight = rt.allocate('f32', shape);
  ops.unpackCodes(rt, result.codes, codes, { bits: scheme.type.bits });
  ops.dequantize(
    rt,
    { codes, scales: result.scales, ...(result.zeros && { zeros: result.zeros }) },
    weight,
    typeParams(scheme.type),
    {
      blockN: 1,
      blockK: groupSizeOf(scheme.granularity, shape[1]),
      zero: constantZero(scheme),
      global: result.globalScale ?? 1,
    },
  );
  codes.dispose();
  return weight;
}
