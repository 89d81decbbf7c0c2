import type { GgufValue } from '../../formats/gguf/metadata.js';

/** A key of the header with its value, in the order of the file. */
export type Entry = readonly [key: string, value: GgufValue];

/** A tensor as the header must describe it; dims are fastest first, as they lie in the file. */
export interface HeaderTensor {
  readonly name: string;
  readonly type: string;
  readonly dims: readonly number[];
}

/**
 * What a tensor takes: its number in the file, elements and bytes of a block; and the general.file_type (llama.h, enum llama_ftype) of a
 * file whose blocks are mostly of it.
 */
const TYPES: Readonly<Record<string, readonly [id: number, elements: number, bytes: number, fileType: number]>> = {
  f32: [0, 1, 4, 0],
  f16: [1, 1, 2, 1],
  q4_0: [2, 32, 18, 2],
  q4_1: [3, 32, 20, 3],
  q5_0: [6, 32, 22, 8],
  q5_1: [7, 32, 24, 9],
  q8_0: [8, 32, 34, 7],
  q2_k: [10, 256, 84, 10],
  q3_k: [11, 256, 110, 11],
  q4_k: [12, 256, 144, 14],
  q5_k: [13, 256, 176, 16],
  q6_k: [14, 256, 210, 18],
  bf16: [30, 1, 2, 32],
  mxfp4: [39, 32, 17, 38],
};

/** Whether a type is one of blocks. */
export const isBlocks = (type: string): boolean => (TYPES[type]?.[1] ?? 1) > 1;

export const fileTypeOf = (type: string): number => (TYPES[type] as (typeof TYPES)[string])[3];

const ALIGNMENT = 32;

export const aligned = (size: number): number => Math.ceil(size / ALIGNMENT) * ALIGNMENT;

/** Bytes of a tensor. */
export function tensorBytes({ type, dims }: HeaderTensor): number {
  const [, elements, bytes] = TYPES[type] as (typeof TYPES)[string];
  return (dims.reduce((product, size) => product * size, 1) / elements) * bytes;
}

/** The whole header, padding included, and where each statement of it ends. */
export interface Header {
  readonly bytes: Uint8Array;
  readonly statements: readonly { readonly what: string; readonly end: number }[];
}

/** The header of a file of version 3 that says this and no more: every byte of it. */
export function headerOf(entries: readonly Entry[], tensors: readonly HeaderTensor[]): Header {
  const out = new Bytes();
  const statements: { what: string; end: number }[] = [];
  const done = (what: string): void => void statements.push({ what, end: out.length });
  out.raw('GGUF');
  out.integer(3, 4);
  out.integer(tensors.length, 8);
  out.integer(entries.length, 8);
  done('the numbers of tensors and keys');
  for (const [key, value] of entries) {
    out.text(key);
    out.value(value);
    done(`key '${key}'`);
  }
  let offset = 0;
  for (const tensor of tensors) {
    out.text(tensor.name);
    out.integer(tensor.dims.length, 4);
    for (const size of tensor.dims) out.integer(size, 8);
    out.integer((TYPES[tensor.type] as readonly number[])[0] as number, 4);
    out.integer(offset, 8);
    offset = aligned(offset + tensorBytes(tensor));
    done(`the description of tensor '${tensor.name}'`);
  }
  out.zeros(aligned(out.length) - out.length);
  done('the padding of the header');
  return { bytes: out.bytes(), statements };
}

/** What a value takes: the number of its type (arrays: of their elements'), and how it is written. */
const VALUES: Readonly<Record<string, readonly [id: number, write: (to: Bytes, value: never) => void]>> = {
  u32: [4, (to, value) => to.integer(value, 4)],
  i32: [5, (to, value) => to.integer(value, 4)],
  f32: [6, (to, value) => to.float(value)],
  bool: [7, (to, value) => to.integer(value ? 1 : 0, 1)],
  string: [8, (to, value) => to.text(value)],
};

/** Little-endian bytes in one buffer that doubles. */
class Bytes {
  private buffer = Buffer.alloc(1 << 16);
  length = 0;

  bytes(): Uint8Array {
    return this.buffer.subarray(0, this.length);
  }

  /** Without its length. */
  raw(text: string): void {
    // room() may put another buffer in place: before the call.
    const at = this.room(Buffer.byteLength(text));
    this.buffer.write(text, at, 'utf8');
  }

  text(text: string): void {
    this.integer(Buffer.byteLength(text), 8);
    this.raw(text);
  }

  /** At most 2^53. */
  integer(value: number, size: 1 | 4 | 8): void {
    const at = this.room(size);
    if (size === 8) this.buffer.writeBigUInt64LE(BigInt(value), at);
    else if (size === 4) this.buffer.writeInt32LE(value | 0, at);
    else this.buffer.writeUInt8(value, at);
  }

  float(value: number): void {
    const at = this.room(4);
    this.buffer.writeFloatLE(value, at);
  }

  zeros(count: number): void {
    const at = this.room(count);
    this.buffer.fill(0, at, at + count);
  }

  /** Its type, then itself. */
  value({ type, value }: GgufValue): void {
    const [id, one] = VALUES[type.replace(/s$/, '')] as (typeof VALUES)[string];
    if (Array.isArray(value)) {
      this.integer(9, 4);
      this.integer(id, 4);
      this.integer(value.length, 8);
      for (const each of value) one(this, each as never);
    } else {
      this.integer(id, 4);
      one(this, value as never);
    }
  }

  private room(size: number): number {
    const at = this.length;
    while (at + size > this.buffer.length) this.buffer = Buffer.concat([this.buffer, Buffer.alloc(this.buffer.length)]);
    this.length += size;
    return at;
  }
}
