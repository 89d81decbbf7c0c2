import { allocate, type DType, fromTyped, type NativeRuntime, type Tensor, typed } from '../../native/binding.js';
import { halfValue } from './floats.js';
import type { Queries } from './kv-case.js';
import type { Rows } from './kv-numbers.js';
import { settle } from './native.js';

/** How far attention may be from fp64: half a unit of what it gives, and of tensor cores the largest code (else 0). */
export interface Exactness {
  readonly unit: number;
  readonly top: number;
}

/** Half a unit of a float type, relatively; of f64 two, since the reference rounds as well. */
export const UNIT = { f16: 2 ** -11, f32: 2 ** -24, f64: 2 ** -52 } as const;
export type OutputType = keyof typeof UNIT;

/** y f64 [heads*headDim] of one query, and its bound (native/cpu/verify/kv_attention.cpp). */
export async function exactAttention(
  rt: NativeRuntime,
  q: Float32Array<ArrayBuffer>,
  [keys, values]: readonly [Rows, Rows],
  p: Queries & Exactness & { readonly kvHeads: number; readonly headDim: number },
): Promise<{ y: Float64Array; bound: Float64Array }> {
  const width = p.kvHeads * p.headDim;
  const inputs = [
    fromTyped('f32', [q.length], q),
    ...[keys.steps, keys.zeros, values.steps, values.zeros].map((rows) =>
      fromTyped('f64', [rows.length / width, width], rows),
    ),
  ];
  const outputs = [0, 1].map(() => allocate('f64', [q.length]));
  rt.enqueue('verify_kv_attention', inputs, outputs, { ...p });
  await settle(rt);
  const [y, bound] = outputs.map((tensor) => typed<Float64Array>(tensor).slice());
  for (const tensor of [...inputs, ...outputs]) tensor.dispose();
  return { y: y as Float64Array, bound: bound as Float64Array };
}

/** A tensor full of NaN, on a device. */
export function poisoned(rt: NativeRuntime, dtype: DType, shape: readonly number[]): Tensor {
  const host = allocate(dtype, shape);
  host.bytes().fill(0xff);
  const there = rt.upload(host);
  host.dispose();
  return there;
}

/** The numbers of a tensor of floats, once everything enqueued has run. */
export async function floatsOf(rt: NativeRuntime, tensor: Tensor): Promise<Float64Array> {
  await settle(rt);
  const host = await rt.download(tensor);
  const values =
    tensor.dtype === 'f16'
      ? Float64Array.from(typed<Uint16Array>(host), halfValue)
      : Float64Array.from(typed<Float32Array | Float64Array>(host));
  host.dispose();
  return values;
}
