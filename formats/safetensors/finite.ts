import { addon, type DType, type NotFinite } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { dtypeFacts, type SafetensorsDtype } from './dtypes.js';
import type { TensorData } from './hash.js';

/** Dtypes that have NaN or infinity. */
const FLOATS: ReadonlySet<DType> = new Set(['f64', 'f32', 'f16', 'bf16', 'f8_e5m2', 'f8_e4m3', 'f8_e8m0']);

/** How many elements of a tensor are NaN or infinite, and which is the first; undefined where none is, or none can be. */
export async function findNotFinite(data: TensorData, dtype: DType | undefined): Promise<NotFinite | undefined> {
  if (dtype === undefined || !FLOATS.has(dtype)) return undefined;
  const bytes = ArrayBuffer.isView(data) ? new Uint8Array(data.buffer, data.byteOffset, data.byteLength) : data;
  const found = await addon().notFinite(bytes, dtype);
  return found.first < 0 ? undefined : found;
}

/** The same, where elements have the dtype that a file's header gives them. */
export function findNotFiniteStored(data: TensorData, dtype: SafetensorsDtype): Promise<NotFinite | undefined> {
  return findNotFinite(data, dtypeFacts(dtype).native);
}

/** '2 NaN, 1 infinite, the first at [3, 17]'; `offset`: elements of the tensor before those that were looked at. */
export function describeNotFinite({ nan, infinite, first }: NotFinite, shape: readonly number[], offset = 0): string {
  const counts = [...(nan > 0 ? [`${nan} NaN`] : []), ...(infinite > 0 ? [`${infinite} infinite`] : [])];
  return `${counts.join(', ')}, the first at [${placeOf(first + offset, shape).join(', ')}]`;
}

/** Throws LPQ_MODULE_NUMERICS naming the tensor and the first place where it is not finite. */
export async function requireFinite(
  name: string,
  data: TensorData,
  dtype: DType | undefined,
  shape: readonly number[],
  offset = 0,
): Promise<void> {
  const found = await findNotFinite(data, dtype);
  if (!found) return;
  throw new LpqError('LPQ_MODULE_NUMERICS', `tensor '${name}' holds NaN or infinity`, {
    got: describeNotFinite(found, shape, offset),
    expected: 'finite numbers',
    hint: 'lpq inspect DIR --check names every such tensor of a checkpoint; fetch it again.',
  });
}

/** Row-major coordinates of an element. */
function placeOf(element: number, shape: readonly number[]): number[] {
  const place: number[] = [];
  let rest = element;
  for (const size of shape.toReversed()) {
    place.unshift(rest % size);
    rest = Math.floor(rest / size);
  }
  return place;
}
