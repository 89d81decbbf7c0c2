import { type FileHandle, open } from 'node:fs/promises';
import { LpqError } from '../../src/core/error.js';
import { writeError } from '../directory/write-error.js';
import { requireFinite } from '../safetensors/finite.js';
import { bytesOf, CHUNK_BYTES, hashTensor, type TensorData } from '../safetensors/hash.js';
import { writeFully } from '../safetensors/tensor-slot.js';
import { ByteSink, type GgufMetadata, writeEntry } from './metadata.js';
import { type GgufTypeName, ggufType, rowBytes } from './types.js';

/** A tensor before its bytes. Stacked experts are `slices` matrices of one tensor. */
export interface GgufTensorPlan {
  readonly name: string;
  readonly type: GgufTypeName;
  /** Row-major: [rows, columns], [elements], or [slices, rows, columns]; the file has them fastest first. */
  readonly shape: readonly number[];
}

export const GGUF_VERSION = 3;
export const GGUF_ALIGNMENT = 32;

interface Place {
  /** As a reader sees a slice of it (GgufFile.spec). */
  readonly type: GgufTypeName;
  readonly shape: readonly number[];
  readonly stacked: boolean;
  readonly offset: number;
  /** Bytes of a slice, and how many there are. */
  readonly bytes: number;
  readonly slices: number;
  readonly written: Map<number, string>;
}

/** Writes one GGUF file: header first, then tensors (or slices of them) in any order. */
export class GgufWriter {
  private constructor(
    readonly file: string,
    private readonly handle: FileHandle,
    private readonly places: ReadonlyMap<string, Place>,
    private readonly dataStart: number,
    private readonly end: number,
  ) {}

  /** Throws LPQ_INTERNAL for a plan that the format cannot hold, LPQ_OUTPUT_WRITE, LPQ_DISK_FULL. */
  static async create(file: string, metadata: GgufMetadata, tensors: readonly GgufTensorPlan[]): Promise<GgufWriter> {
    const { header, places, end } = planFile(metadata, tensors);
    let handle: FileHandle;
    try {
      handle = await open(file, 'wx');
    } catch (cause) {
      throw writeError(file, cause);
    }
    const writer = new GgufWriter(file, handle, places, header.length, header.length + end);
    await writer.attempt(() => writeFully(handle, header, 0));
    return writer;
  }

  /**
   * A whole tensor, or slice `slice` of a stacked one. Returns its hash (GgufFile.spec). Throws LPQ_MODULE_NUMERICS where
   * plain numbers are NaN or infinite, LPQ_INTERNAL.
   */
  async write(name: string, data: TensorData, slice = 0): Promise<string> {
    const place = this.places.get(name);
    if (!place || slice < 0 || slice >= place.slices || place.written.has(slice) || data.byteLength !== place.bytes)
      throw new LpqError('LPQ_INTERNAL', `tensor '${name}' of ${this.file} was not declared like this`, {
        got: `slice ${slice} of ${data.byteLength} bytes`,
        expected: place ? `${place.slices} of ${place.bytes}, each once` : 'no such tensor',
      });
    const { type, shape, stacked } = place;
    const label = stacked ? `${name}[${slice}]` : name;
    if (type === 'f32' || type === 'f16' || type === 'bf16') await requireFinite(label, data, type, shape);
    const start = this.dataStart + place.offset + slice * place.bytes;
    await this.attempt(async () => {
      for (let at = 0; at < data.byteLength; at += CHUNK_BYTES)
        await writeFully(this.handle, bytesOf(data, at, Math.min(CHUNK_BYTES, data.byteLength - at)), start + at);
    });
    const digest = await hashTensor({ name: label, dtype: type, shape }, data);
    place.written.set(slice, digest);
    return digest;
  }

  /** Pads and syncs. Throws LPQ_INTERNAL naming a tensor whose bytes never came. */
  async finish(): Promise<void> {
    for (const [name, { slices, written }] of this.places)
      if (written.size !== slices)
        throw new LpqError('LPQ_INTERNAL', `tensor '${name}' of ${this.file} was never written`);
    await this.attempt(async () => {
      await this.handle.truncate(this.end);
      await this.handle.sync();
    });
    await this.handle.close();
  }

  async abort(): Promise<void> {
    await this.handle.close().catch(() => {});
  }

  private async attempt(body: () => Promise<void>): Promise<void> {
    try {
      await body();
    } catch (cause) {
      throw writeError(this.file, cause);
    }
  }
}

function planFile(metadata: GgufMetadata, tensors: readonly GgufTensorPlan[]) {
  const sink = new ByteSink();
  sink.bytes(new TextEncoder().encode('GGUF'));
  sink.u32(GGUF_VERSION);
  sink.u64(tensors.length);
  sink.u64(metadata.size);
  for (const [key, value] of metadata) writeEntry(sink, key, value);
  const places = new Map<string, Place>();
  let end = 0;
  for (const { name, type, shape } of tensors) {
    const { id, ...facts } = ggufType(type);
    const columns = shape.at(-1) as number;
    const row = rowBytes({ id, ...facts }, columns);
    const slices = shape.length === 3 ? (shape[0] as number) : 1;
    const rows = shape.length === 1 ? 1 : (shape.at(-2) as number);
    if (row === undefined || places.has(name) || shape.length === 0 || shape.length > 3)
      throw new LpqError('LPQ_INTERNAL', `tensor '${name}' cannot be ${type} [${shape}], or is planned twice`);
    sink.string(name);
    sink.u32(shape.length);
    for (const size of shape.toReversed()) sink.u64(size);
    sink.u32(id);
    sink.u64(end);
    const place = { type, shape: shape.slice(-2), stacked: shape.length === 3 };
    places.set(name, { ...place, offset: end, bytes: rows * row, slices, written: new Map() });
    end = Math.ceil((end + slices * rows * row) / GGUF_ALIGNMENT) * GGUF_ALIGNMENT;
  }
  sink.pad(GGUF_ALIGNMENT);
  return { header: sink.joined(), places, end };
}
