import { numbersOf } from '../../../formats/foreign/numbers.js';
import type { GgufValue } from '../../../formats/gguf/metadata.js';
import { type Scalar, scalarsOf } from '../../../formats/gguf/scalars.js';
import { type Tensor, typed } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';
import type { Carried } from '../../model/gguf/carried.js';
import type { GgufModel } from '../../model/gguf/model.js';

/** Lists of the numbers that every block has one of, f32. Throws LPQ_TENSOR_MISSING, LPQ_TENSOR_SHAPE. */
export async function scalarEntries(
  carried: Carried,
  { names, plan }: GgufModel,
): Promise<readonly (readonly [key: string, value: GgufValue])[]> {
  const entries: [string, GgufValue][] = [];
  for (const [key, list] of scalarsOf(names, plan.blocks.length)) {
    const value: number[] = [];
    for (const each of list) value.push(await numberOf(carried, each));
    entries.push([key, { type: 'f32s', value }]);
  }
  return entries;
}

async function numberOf(carried: Carried, { name }: Scalar): Promise<number> {
  const tensor = await carried.tensor(name);
  const { dtype, shape } = tensor;
  const [value, ...more] = plain(tensor);
  tensor.dispose();
  if (value !== undefined && more.length === 0) return Math.fround(value);
  throw new LpqError('LPQ_TENSOR_SHAPE', `tensor '${name}' is not one number of a float dtype`, {
    got: `${dtype} [${shape}]`,
    expected: 'F32, F16 or BF16 [1]',
  });
}

function plain(tensor: Tensor): ArrayLike<number> & Iterable<number> {
  if (tensor.dtype === 'f32' || tensor.dtype === 'f64') return typed<Float32Array>(tensor).slice();
  if (tensor.dtype === 'f16' || tensor.dtype === 'bf16') return numbersOf(typed<Uint16Array>(tensor), tensor.dtype);
  return [];
}
