import { fromTyped, type Tensor, typed } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import type { TensorReader } from '../safetensors/read.js';

/** F32, F16 and BF16 as they are, F64 rounded to f32. Throws LPQ_DTYPE for the rest, LPQ_TENSOR_MISSING. */
export function floatTensor(weights: TensorReader, name: string): Tensor {
  const dtype = weights.dtype(name);
  if (dtype === 'F32' || dtype === 'F16' || dtype === 'BF16') return weights.tensor(name);
  if ((dtype === 'I32' || dtype === 'I64') && !/\.(weight|bias)$/.test(name)) return weights.tensor(name);
  if (dtype !== 'F64')
    throw new LpqError('LPQ_DTYPE', `tensor '${name}' of ${weights.path} is not a floating-point weight`, {
      got: dtype,
      expected: 'F32, F16, BF16 or F64',
    });
  const wide = weights.tensor(name);
  const narrow = fromTyped('f32', wide.shape, Float32Array.from(typed<Float64Array>(wide)));
  wide.dispose();
  return narrow;
}
