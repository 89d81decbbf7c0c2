import { basename } from 'node:path';
import { allocate, type DType, type MappedFile, mapFile, type Tensor } from '../../native/binding.js';
import { tell } from '../../src/core/activity.js';
import { LpqError } from '../../src/core/error.js';
import { dtypeFacts, nativeBytes, type SafetensorsDtype } from './dtypes.js';
import { type Header, headerLength, parseHeader, type TensorEntry } from './header.js';

/** What can be asked of anything that holds named tensors: one file, or all shards of a checkpoint. */
export interface TensorReader {
  /** For messages: the file or the directory. */
  readonly path: string;
  /** In order of their bytes, shard after shard. */
  names(): Iterable<string>;
  has(name: string): boolean;
  /** Name, dtype and shape without reading bytes. Throws LPQ_TENSOR_MISSING, as all that follow do. */
  spec(name: string): TensorEntry;
  dtype(name: string): SafetensorsDtype;
  shape(name: string): readonly number[];
  /**
   * The tensor, mapped: a zero-copy, read-only view (a copy where the file puts it on an odd address). The caller
   * disposes of it. Dtypes without a native one read as raw u8 [bytes]. `as` reads the elements as another dtype of the
   * same width, e.g. U8 as f8_e8m0.
   */
  tensor(name: string, as?: DType): Tensor;
  /**
   * A copy of a tensor of F32, F16 or BF16, read on threads beside the program once its file is here; undefined, and no such function, where
   * tensor() is the way. Throws what fetching throws.
   */
  load?(name: string): Promise<Tensor> | undefined;
  /** Tells the kernel that a tensor is needed soon, or no longer: resident memory stays small while streaming. */
  advise(name: string, advice: 'willneed' | 'dontneed'): void;
}

/** One safetensors file, mapped; of any size. Every rule of spec.md is checked on opening. */
export class SafetensorsFile implements TensorReader {
  private readonly entries: ReadonlyMap<string, TensorEntry>;

  private constructor(
    readonly path: string,
    readonly header: Header,
    private readonly map: MappedFile,
  ) {
    this.entries = new Map(header.tensors.map((entry) => [entry.name, entry]));
  }

  /** Throws LPQ_FILE when the file cannot be read and LPQ_SAFETENSORS when it breaks a rule. */
  static open(path: string): SafetensorsFile {
    tell(`opening ${basename(path)}`);
    const map = mapFile(path);
    try {
      const length = headerLength(path, map.read(0, Math.min(8, map.size)), map.size);
      return new SafetensorsFile(path, parseHeader(path, map.read(8, length), map.size), map);
    } catch (error) {
      map.close();
      throw error;
    }
  }

  get metadata(): Readonly<Record<string, string>> | undefined {
    return this.header.metadata;
  }

  /** A copy of the file's bytes before its data: the length and the header. */
  headerBytes(): Uint8Array {
    return this.map.read(0, this.header.dataStart);
  }

  names(): Iterable<string> {
    return this.entries.keys();
  }

  has(name: string): boolean {
    return this.entries.has(name);
  }

  spec(name: string): TensorEntry {
    const entry = this.entries.get(name);
    if (entry) return entry;
    throw new LpqError('LPQ_TENSOR_MISSING', `${this.path} has no tensor '${name}'`);
  }

  dtype(name: string): SafetensorsDtype {
    return this.spec(name).dtype;
  }

  shape(name: string): readonly number[] {
    return this.spec(name).shape;
  }

  tensor(name: string, as?: DType): Tensor {
    const { dtype, shape, begin, end } = this.spec(name);
    const { bits, native } = dtypeFacts(dtype);
    const want = as ?? native ?? 'u8';
    const raw = as === undefined && native === undefined;
    if (!raw && nativeBytes(want) * 8 !== bits)
      throw new LpqError('LPQ_DTYPE', `tensor '${name}' of ${this.path} cannot be read as ${want}`, { got: dtype });
    const wantShape = raw ? [end - begin] : shape;
    const offset = this.header.dataStart + begin;
    if (offset % nativeBytes(want) === 0) return this.map.tensor(want, wantShape, offset);
    // Only a foreign writer that does not pad its header gets here; native code wants aligned elements.
    const copy = allocate(want, wantShape);
    const view = this.map.tensor('u8', [end - begin], offset);
    for (let at = 0; at < end - begin; at += COPY_BYTES) {
      const length = Math.min(COPY_BYTES, end - begin - at);
      copy.bytes(at, length).set(view.bytes(at, length));
    }
    view.dispose();
    return copy;
  }

  advise(name: string, advice: 'willneed' | 'dontneed'): void {
    const { begin, end } = this.spec(name);
    this.map.advise(advice, this.header.dataStart + begin, end - begin);
  }

  /** Tensors that were handed out keep the mapping alive. */
  close(): void {
    this.map.close();
  }
}

const COPY_BYTES = 2 ** 28;
