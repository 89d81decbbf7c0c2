import { createHash } from 'node:crypto';
import { setImmediate } from 'node:timers/promises';
import { addon, type Sha256, type Tensor } from '../../native/binding.js';

/** Bytes handled in one go: small enough that an interrupt is answered at once, large enough to cost nothing. */
export const CHUNK_BYTES = 2 ** 25;

/** Tensor bytes as lpq's writers take them: a native tensor, or any typed array in little-endian order. */
export type TensorData = Tensor | ArrayBufferView;

/** A window of the bytes, not a copy. */
export function bytesOf(data: TensorData, offset: number, length: number): Uint8Array {
  if (!ArrayBuffer.isView(data)) return data.bytes(offset, length);
  return new Uint8Array(data.buffer, data.byteOffset + offset, length);
}

/** A SHA-256 that is fed piece by piece; `data` must stay as it is until update() settles. Calls must not overlap. */
export interface RunningHash {
  update(data: TensorData): Promise<void>;
  /** Hex digits. */
  digest(): string;
}

/** SHA-256 beside this thread: hashing 1.5 GB/s here would hold up whoever feeds a GPU. On it where Node shows no OpenSSL. */
export function startHash(): RunningHash {
  const native = nativeHash();
  if (!native) return new ChunkedHash();
  return {
    update: (data) => native.update(ArrayBuffer.isView(data) ? bytesOf(data, 0, data.byteLength) : data),
    digest: () => native.digest(),
  };
}

/** sha256 (hex) of bytes alone; other work runs meanwhile. */
export async function sha256(data: TensorData): Promise<string> {
  const hash = startHash();
  await hash.update(data);
  return hash.digest();
}

/** What of a tensor its hash covers beside its bytes: a file's header that says something else is another tensor. */
export interface HashedFacts {
  readonly name: string;
  /** As the file's header names it: BF16, U8; of GGUF the type's name. */
  readonly dtype: string;
  readonly shape: readonly number[];
}

/** The hash of a tensor (spec.md), fed with its bytes in order. */
export async function startTensorHash(facts: HashedFacts): Promise<RunningHash> {
  const hash = startHash();
  await hash.update(preamble(facts));
  return hash;
}

/** The hash of a tensor (hex): of name, dtype, shape and bytes. */
export async function hashTensor(facts: HashedFacts, data: TensorData): Promise<string> {
  const hash = await startTensorHash(facts);
  await hash.update(data);
  return hash.digest();
}

/** Each text behind its length, the dimensions behind their number: no two tensors share a preamble. All numbers are u64 LE. */
function preamble({ name, dtype, shape }: HashedFacts): Uint8Array {
  const words = (...values: number[]) => new Uint8Array(BigUint64Array.from(values, BigInt).buffer);
  const texts = [name, dtype].map((text) => Buffer.from(text));
  return Buffer.concat([...texts.flatMap((text) => [words(text.length), text]), words(shape.length, ...shape)]);
}

/** node:crypto on this thread, chunk by chunk; other work runs in between. */
export class ChunkedHash implements RunningHash {
  private readonly hash = createHash('sha256');

  async update(data: TensorData): Promise<void> {
    for (let at = 0; at < data.byteLength; at += CHUNK_BYTES) {
      this.hash.update(bytesOf(data, at, Math.min(CHUNK_BYTES, data.byteLength - at)));
      await setImmediate();
    }
  }

  digest(): string {
    return this.hash.digest('hex');
  }
}

function nativeHash(): Sha256 | undefined {
  try {
    return new (addon().Sha256)();
  } catch {
    return undefined;
  }
}
