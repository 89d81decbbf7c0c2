// The hash of a tensor as formats/safetensors/spec.md defines it, by node:crypto.
import { createHash } from 'node:crypto';
import type { HashedFacts } from '../../../formats/safetensors/hash.js';

export function tensorHash({ name, dtype, shape }: HashedFacts, data: ArrayBufferView): string {
  const hash = createHash('sha256');
  const number = (value: number) => {
    const word = Buffer.alloc(8);
    word.writeBigUInt64LE(BigInt(value));
    hash.update(word);
  };
  for (const text of [name, dtype]) {
    number(Buffer.byteLength(text));
    hash.update(text, 'utf8');
  }
  number(shape.length);
  for (const size of shape) number(size);
  return hash.update(new Uint8Array(data.buffer, data.byteOffset, data.byteLength)).digest('hex');
}
