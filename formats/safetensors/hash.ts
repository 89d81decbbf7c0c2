import { createHash, type Hash } from 'node:crypto';
import { setImmediate } from 'node:timers/promises';
import type { Tensor } from '../../native/binding.js';

/** Bytes handled in one go: small enough that an interrupt is answered at once, large enough to cost nothing. */
export const CHUNK_BYTES = 2 ** 25;

/** Tensor bytes as lpq's writers take them: a native tensor, or any typed array in little-endian order. */
export type TensorData = Tensor | ArrayBufferView;

/** A window of the bytes, not a copy. */
export function bytesOf(data: TensorData, offset: number, length: number): Uint8Array {
  if (!ArrayBuffer.isView(data)) return data.bytes(offset, length);
  return new Uint8Array(data.buffer, data.byteOffset + offset, length);
}

/** sha256 (hex) of a tensor's bytes, chunk by chunk; other work runs in between. */
export async function sha256(data: TensorData): Promise<string> {
  const hash = createHash('sha256');
  await updateHash(hash, data);
  return hash.digest('hex');
}

/** Feeds all bytes of `data` to a running hash. */
export async function updateHash(hash: Hash, data: TensorData): Promise<void> {
  for (let at = 0; at < data.byteLength; at += CHUNK_BYTES) {
    hash.update(bytesOf(data, at, Math.min(CHUNK_BYTES, data.byteLength - at)));
    await setImmediate();
  }
}
