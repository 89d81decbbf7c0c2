// A forger of GGUF artifacts: takes model.gguf apart, lets a test change it, writes it again, and redoes every hash and the
// seal. It reads and writes the container by itself, and blocks by the tests' own decoder.
import { createHash } from 'node:crypto';
import { cpSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import path from 'node:path';
import type { ArtifactManifest } from '../../../formats/artifact/schema.js';
import { sealManifest } from '../../../formats/artifact/seal.js';
import { tensorHash } from '../../formats/safetensors/tensor-hash.js';
import { decodeMatrix } from '../pack/gguf-blocks.js';

const sha256 = (bytes: Uint8Array) => createHash('sha256').update(bytes).digest('hex');

/** Numbers of the types, their names, elements and bytes of a block. */
const TYPES: Readonly<Record<number, readonly [string, number, number]>> = {
  0: ['f32', 1, 4],
  1: ['f16', 1, 2],
  2: ['q4_0', 32, 18],
  3: ['q4_1', 32, 20],
  6: ['q5_0', 32, 22],
  7: ['q5_1', 32, 24],
  8: ['q8_0', 32, 34],
  10: ['q2_k', 256, 84],
  11: ['q3_k', 256, 110],
  12: ['q4_k', 256, 144],
  13: ['q5_k', 256, 176],
  14: ['q6_k', 256, 210],
  39: ['mxfp4', 32, 17],
  30: ['bf16', 1, 2],
};

export interface Key {
  key: string;
  type: number;
  /** As they lie in the file, behind the type. */
  value: Buffer;
}

export interface Stored {
  name: string;
  dims: number[];
  type: number;
  data: Buffer;
}

export class Container {
  keys: Key[] = [];
  tensors: Stored[] = [];
  /** Set: written instead of zeros after the header, after each tensor, and behind the last. */
  padding = { header: 0, tensors: 0, end: Buffer.alloc(0) };

  constructor(bytes: Buffer) {
    let at = 8;
    const number = (size: 4 | 8): number => {
      const value = size === 4 ? bytes.readUInt32LE(at) : Number(bytes.readBigUInt64LE(at));
      at += size;
      return value;
    };
    const text = (): string => {
      const length = number(8);
      at += length;
      return bytes.toString('utf8', at - length, at);
    };
    const [tensors, keys] = [number(8), number(8)];
    for (let i = 0; i < keys; i++) {
      const key = text();
      const type = number(4);
      const from = at;
      const skip = (kind: number): void => {
        if (kind === 8) text();
        else at += kind === 7 ? 1 : 4;
      };
      if (type === 9) {
        const of = number(4);
        for (let left = number(8); left > 0; left--) skip(of);
      } else skip(type);
      this.keys.push({ key, type, value: bytes.subarray(from, at) });
    }
    const infos = Array.from({ length: tensors }, () => {
      const name = text();
      const dims = Array.from({ length: number(4) }, () => number(8));
      return { name, dims, type: number(4), offset: number(8) };
    });
    const start = Math.ceil(at / 32) * 32;
    this.tensors = infos.map(({ name, dims, type, offset }) => {
      const [, elements, size] = TYPES[type]!;
      const length = (dims.reduce((a, b) => a * b, 1) / elements) * size;
      return { name, dims, type, data: Buffer.from(bytes.subarray(start + offset, start + offset + length)) };
    });
  }

  key(name: string): Key {
    return this.keys.find(({ key }) => key === name)!;
  }

  strings(name: string): string[] {
    const { value } = this.key(name);
    let at = 12;
    return Array.from({ length: Number(value.readBigUInt64LE(4)) }, () => {
      const length = Number(value.readBigUInt64LE(at));
      at += 8 + length;
      return value.toString('utf8', at - length, at);
    });
  }

  setStrings(name: string, list: readonly string[]): void {
    const parts = list.flatMap((each) => [u64(Buffer.byteLength(each)), Buffer.from(each)]);
    this.key(name).value = Buffer.concat([u32(8), u64(list.length), ...parts]);
  }

  tensor(name: string): Stored {
    return this.tensors.find((tensor) => tensor.name === name)!;
  }

  /** Bytes of a row. */
  row({ dims, type }: Stored): number {
    const [, elements, size] = TYPES[type]!;
    return (dims[0]! / elements) * size;
  }

  write(): Buffer {
    const parts: Buffer[] = [Buffer.from('GGUF'), u32(3), u64(this.tensors.length), u64(this.keys.length)];
    const text = (value: string): Buffer[] => [u64(Buffer.byteLength(value)), Buffer.from(value)];
    for (const { key, type, value } of this.keys) parts.push(...text(key), u32(type), value);
    const data: Buffer[] = [];
    let offset = 0;
    for (const tensor of this.tensors) {
      parts.push(...text(tensor.name), u32(tensor.dims.length), ...tensor.dims.map(u64), u32(tensor.type), u64(offset));
      const padding = Buffer.alloc((32 - (tensor.data.length % 32)) % 32, this.padding.tensors);
      data.push(tensor.data, padding);
      offset += tensor.data.length + padding.length;
    }
    const header = Buffer.concat(parts);
    const padding = Buffer.alloc((32 - (header.length % 32)) % 32, this.padding.header);
    return Buffer.concat([header, padding, ...data, this.padding.end]);
  }
}

export function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32LE(value);
  return bytes;
}

export function u64(value: number): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(BigInt(value));
  return bytes;
}

/** What a forger changes: the container, lpq.json, files of the directory. */
export interface Forgery {
  readonly gguf?: (container: Container) => void;
  readonly manifest?: (manifest: ArtifactManifest) => void;
  readonly files?: (dir: string) => void;
}

/** A copy of an artifact with a forgery in it and all hashes made to fit; `body` gets its directory. */
export async function forged(artifact: string, forgery: Forgery, body: (dir: string) => Promise<void>): Promise<void> {
  const dir = mkdtempSync(path.join(tmpdir(), 'lpq-forged-'));
  try {
    cpSync(artifact, dir, { recursive: true });
    const file = path.join(dir, 'model.gguf');
    const container = new Container(readFileSync(file));
    const before = new Map(container.tensors.map(({ name, data }) => [name, sha256(data)]));
    forgery.gguf?.(container);
    if (forgery.gguf) writeFileSync(file, container.write());
    forgery.files?.(dir);
    const manifest = JSON.parse(readFileSync(path.join(dir, 'lpq.json'), 'utf8')) as ArtifactManifest;
    rehash(container, before, manifest);
    forgery.manifest?.(manifest);
    for (const name of Object.keys(manifest.files)) delete manifest.files[name];
    for (const name of readdirSync(dir))
      if (name !== 'lpq.json') manifest.files[name] = sha256(readFileSync(path.join(dir, name)));
    writeFileSync(path.join(dir, 'lpq.json'), sealManifest(manifest).text);
    await body(dir);
  } finally {
    rmSync(dir, { recursive: true, force: true });
  }
}

/** Tensors that changed get the hashes that a packer would have given them. */
function rehash(container: Container, before: ReadonlyMap<string, string>, manifest: ArtifactManifest): void {
  for (const tensor of container.tensors) {
    if (before.get(tensor.name) === sha256(tensor.data)) continue;
    const slices = tensor.dims[2] ?? 1;
    const size = tensor.data.length / slices;
    for (let slice = 0; slice < slices; slice++) {
      const name = tensor.dims.length === 3 ? `${tensor.name}[${slice}]` : tensor.name;
      const bytes = tensor.data.subarray(slice * size, (slice + 1) * size);
      const [type] = TYPES[tensor.type]!;
      const [columns, rows] = [tensor.dims[0]!, tensor.dims[1] ?? 1];
      const hash = tensorHash({ name, dtype: type, shape: tensor.dims.slice(0, 2).reverse() }, bytes);
      if (manifest.carried[name] !== undefined) manifest.carried[name] = hash;
      for (const [module, entry] of Object.entries(manifest.modules)) {
        if (entry.tensors[name] === undefined) continue;
        entry.tensors[name] = hash;
        if (entry.canonical.weight === undefined || !type.startsWith('q')) continue;
        const values = inOrder(name, Float32Array.from(decodeMatrix(type, bytes, rows, columns)), columns);
        entry.canonical.weight = tensorHash({ name: `${module}.weight`, dtype: 'F32', shape: [rows, columns] }, values);
      }
    }
  }
}

/** The checkpoint's rows: those of q and k are interleaved by heads of 64 in the bundled model. */
function inOrder(name: string, values: Float32Array, columns: number): Float32Array {
  if (!/attn_[qk]\.weight$/.test(name)) return values;
  const out = new Float32Array(values.length);
  for (let row = 0; row < values.length / columns; row++) {
    const within = row % 64;
    const to = row - within + (within % 2) * 32 + Math.floor(within / 2);
    out.set(values.subarray(row * columns, (row + 1) * columns), to * columns);
  }
  return out;
}
