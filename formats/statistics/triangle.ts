import { setImmediate } from 'node:timers/promises';
import { allocate, type Tensor } from '../../native/binding.js';
import { triangle } from './schema.js';

/** Bytes looked at through one window: tensors show at most 2 GiB of themselves at once. */
const WINDOW_BYTES = 2 ** 28;
/** Rows filled together, so that a line of the cache that the mirrored half reads is used up. */
const ROWS = 32;

/**
 * The lower triangle of a symmetric matrix [K,K] (f64 or f32, in the CPU's memory), row after row, rounded to f32
 * [K(K+1)/2]. The caller disposes of the result.
 */
export async function packTriangle(matrix: Tensor, windowBytes = WINDOW_BYTES): Promise<Tensor> {
  const [k] = matrix.shape as [number, number];
  const packed = allocate('f32', [triangle(k)]);
  const rows = Math.max(1, Math.floor(windowBytes / (8 * k)));
  for (let first = 0; first < k; first += rows) {
    const end = Math.min(k, first + rows);
    const from = elements(matrix, first * k, (end - first) * k);
    const start = triangle(first);
    const to = elements(packed, start, triangle(end) - start);
    for (let i = first; i < end; i++)
      to.set(from.subarray((i - first) * k, (i - first) * k + i + 1), triangle(i) - start);
    await setImmediate();
  }
  return packed;
}

/**
 * The matrix [K,K] of `dtype` from its packed triangle; only the lower half where `mirrored` is false: a device does the
 * rest faster (ops.gramFinish). The caller disposes of the result.
 */
export async function unpackTriangle(
  packed: Tensor,
  k: number,
  dtype: 'f64' | 'f32',
  mirrored: boolean,
  windowBytes = WINDOW_BYTES,
): Promise<Tensor> {
  const matrix = allocate(dtype, [k, k]);
  const windows: { first: number; end: number; start: number; values: Values }[] = [];
  for (let first = 0; first < k; ) {
    let end = first + 1;
    while (end < k && 4 * (triangle(end + 1) - triangle(first)) <= windowBytes) end++;
    const start = triangle(first);
    windows.push({ first, end, start, values: elements(packed, start, triangle(end) - start) });
    first = end;
  }
  for (let top = 0; top < k; top += ROWS) {
    const bottom = Math.min(k, top + ROWS);
    const to = elements(matrix, top * k, (bottom - top) * k);
    for (const { first, end, start, values } of windows)
      for (let j = Math.max(first, top); j < (mirrored ? end : Math.min(end, bottom)); j++) {
        const row = triangle(j) - start;
        // Row j: itself where it is one of these rows, and, mirrored, column j of those above it.
        if (j < bottom) to.set(values.subarray(row, row + j + 1), (j - top) * k);
        for (let i = top; mirrored && i < Math.min(bottom, j); i++) to[(i - top) * k + j] = values[row + i] as number;
      }
    if (top % (16 * ROWS) === 0) await setImmediate();
  }
  return matrix;
}

/**
 * The sum of packed triangles of one size (f32), element by element in fp64 in the order given, rounded once to f32. The caller disposes
 * of the result.
 */
export async function addTriangles(parts: readonly Tensor[], windowBytes = WINDOW_BYTES): Promise<Tensor> {
  const [first] = parts as [Tensor];
  const [count] = first.shape as [number];
  const total = allocate('f32', [count]);
  const most = Math.max(1, Math.floor(windowBytes / 8));
  for (let at = 0; at < count; at += most) {
    const length = Math.min(most, count - at);
    const sums = new Float64Array(length);
    for (const part of parts) {
      const values = elements(part, at, length);
      for (let i = 0; i < length; i++) sums[i] = (sums[i] as number) + (values[i] as number);
      await setImmediate();
    }
    elements(total, at, length).set(sums);
  }
  return total;
}

type Values = Float64Array<ArrayBuffer> | Float32Array<ArrayBuffer>;

/** Elements [first, first + count) over the tensor's own memory, or of a copy where a mapped file puts them oddly. */
function elements(tensor: Tensor, first: number, count: number): Values {
  const make = tensor.dtype === 'f64' ? Float64Array : Float32Array;
  const size = make.BYTES_PER_ELEMENT;
  const bytes = tensor.bytes(first * size, count * size);
  return bytes.byteOffset % size === 0
    ? new make(bytes.buffer, bytes.byteOffset, count)
    : new make(bytes.slice().buffer, 0, count);
}
