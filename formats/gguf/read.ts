import { type MappedFile, mapFile, type Tensor } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import type { HashedFacts } from '../safetensors/hash.js';
import type { GgufValue } from './metadata.js';
import { type GgufType, ggufTypeOf, rowBytes } from './types.js';

/** A matrix (or a vector as one row) of a GGUF file; stacked experts are a matrix each, called NAME[i]. */
export interface GgufMatrix {
  readonly name: string;
  readonly type: GgufType;
  readonly rows: number;
  readonly columns: number;
  /** Dimensions in the file: 1, 2 or 3. */
  readonly rank: number;
  /** Bytes of a row, and of the matrix. */
  readonly rowBytes: number;
  readonly bytes: number;
  /** Where it starts in the file. */
  readonly position: number;
}

/** Far more than any model has: a file that says more is damaged. */
const MOST = 2 ** 24;

/** A GGUF file of version 3, mapped. What opens has tensors of known types, aligned, inside the file and apart. */
export class GgufFile {
  private constructor(
    readonly path: string,
    readonly metadata: ReadonlyMap<string, GgufValue>,
    private readonly matrices: ReadonlyMap<string, GgufMatrix>,
    private readonly map: MappedFile,
  ) {}

  /** Throws LPQ_FILE, and LPQ_ARTIFACT for what breaks a rule of the format. */
  static open(path: string): GgufFile {
    const map = mapFile(path);
    try {
      const reader = new Reader(path, map);
      const { metadata, matrices } = reader.file();
      return new GgufFile(path, metadata, matrices, map);
    } catch (error) {
      map.close();
      throw error;
    }
  }

  names(): string[] {
    return [...this.matrices.keys()];
  }

  has(name: string): boolean {
    return this.matrices.has(name);
  }

  /** Throws LPQ_TENSOR_MISSING. */
  matrix(name: string): GgufMatrix {
    const found = this.matrices.get(name);
    if (found) return found;
    throw new LpqError('LPQ_TENSOR_MISSING', `${this.path} has no tensor '${name}'`);
  }

  /** What the hash of a matrix covers beside its bytes. Throws LPQ_TENSOR_MISSING. */
  spec(name: string): HashedFacts {
    const { type, rows, columns, rank } = this.matrix(name);
    return { name, dtype: type.name, shape: rank === 1 ? [columns] : [rows, columns] };
  }

  /** Its bytes, mapped: U8 [rows, rowBytes]; of f32, f16 and bf16 the elements [rows, columns]. */
  tensor(name: string): Tensor {
    const { type, rows, columns, rowBytes: width, position } = this.matrix(name);
    if (type.name === 'f32' || type.name === 'f16' || type.name === 'bf16')
      return this.map.tensor(type.name, [rows, columns], position);
    return this.map.tensor('u8', [rows, width], position);
  }

  close(): void {
    this.map.close();
  }
}

class Reader {
  private at = 0;

  constructor(
    private readonly path: string,
    private readonly map: MappedFile,
  ) {}

  file() {
    if (new TextDecoder().decode(this.take(4)) !== 'GGUF') this.bad('it does not start with GGUF');
    const version = this.u32();
    if (version !== 3) this.bad('its version is not 3', version);
    const tensorCount = this.count('tensors');
    const keyCount = this.count('keys');
    const metadata = new Map<string, GgufValue>();
    for (let i = 0; i < keyCount; i++) {
      const key = this.string();
      if (metadata.has(key)) this.bad(`key '${key}' is there twice`);
      metadata.set(key, this.value(key));
    }
    const alignment = metadata.get('general.alignment')?.value ?? 32;
    if (typeof alignment !== 'number' || alignment < 8 || alignment % 8 !== 0)
      this.bad('general.alignment is no multiple of 8', alignment);
    const infos = Array.from({ length: tensorCount }, () => this.info());
    const start = Math.ceil(this.at / (alignment as number)) * (alignment as number);
    const matrices = new Map<string, GgufMatrix>();
    let end = 0;
    for (const { name, dims, type, offset } of infos.toSorted((a, b) => a.offset - b.offset)) {
      const [columns = 1, rows = 1, slices = 1] = dims;
      const width = rowBytes(type, columns);
      if (width === undefined) return this.bad(`tensor '${name}' has rows of ${columns}, no whole blocks`);
      if (offset % (alignment as number) !== 0) this.bad(`tensor '${name}' is not aligned`, offset);
      if (offset < end) this.bad(`tensor '${name}' overlaps the one before it`, offset);
      const bytes = rows * width;
      end = offset + slices * bytes;
      if (!Number.isSafeInteger(end) || start + end > this.map.size)
        this.bad(`tensor '${name}' reaches beyond the end of the file`, start + end);
      for (let slice = 0; slice < slices; slice++) {
        const own = dims.length === 3 ? `${name}[${slice}]` : name;
        if (matrices.has(own)) this.bad(`tensor '${own}' is there twice`);
        const position = start + offset + slice * bytes;
        matrices.set(own, { name: own, type, rows, columns, rank: dims.length, rowBytes: width, bytes, position });
      }
    }
    return { metadata, matrices };
  }

  private info() {
    const name = this.string();
    const rank = this.u32();
    if (rank < 1 || rank > 3) this.bad(`tensor '${name}' has ${rank} dimensions`, rank);
    const dims = Array.from({ length: rank }, () => this.u64());
    if (dims.some((size) => size < 1) || (dims[2] ?? 1) > MOST)
      this.bad(`tensor '${name}' has a wrong shape`, dims.join(', '));
    const id = this.u32();
    const type = ggufTypeOf(id);
    if (!type) return this.bad(`tensor '${name}' has a type that lpq does not read`, id);
    return { name, dims, type, offset: this.u64() };
  }

  private value(key: string): GgufValue {
    const kind = this.u32();
    if (kind === 4) return { type: 'u32', value: this.u32() };
    if (kind === 5) return { type: 'i32', value: this.view(4).getInt32(0, true) };
    if (kind === 6) return { type: 'f32', value: this.view(4).getFloat32(0, true) };
    if (kind === 7) return { type: 'bool', value: this.take(1)[0] !== 0 };
    if (kind === 8) return { type: 'string', value: this.string() };
    if (kind !== 9) return this.bad(`key '${key}' has a value of type ${kind}, which lpq does not read`, kind);
    const of = this.u32();
    const length = this.u64();
    if (length > MOST) this.bad(`key '${key}' has ${length} values`, length);
    if (of === 8) return { type: 'strings', value: Array.from({ length }, () => this.string()) };
    if (of !== 5 && of !== 6) return this.bad(`key '${key}' has values of type ${of}, which lpq does not read`, of);
    const view = this.view(4 * length);
    const read = of === 5 ? (i: number) => view.getInt32(4 * i, true) : (i: number) => view.getFloat32(4 * i, true);
    return { type: of === 5 ? 'i32s' : 'f32s', value: Array.from({ length }, (_, i) => read(i)) };
  }

  private count(what: string): number {
    const value = this.u64();
    if (value > MOST) this.bad(`it claims ${value} ${what}`, value);
    return value;
  }

  private u32(): number {
    return this.view(4).getUint32(0, true);
  }

  private u64(): number {
    const value = this.view(8).getBigUint64(0, true);
    if (value > BigInt(Number.MAX_SAFE_INTEGER)) this.bad('a number is too large for any file', value);
    return Number(value);
  }

  private string(): string {
    return new TextDecoder().decode(this.take(this.u64()));
  }

  private view(length: number): DataView {
    const bytes = this.take(length);
    return new DataView(bytes.buffer, bytes.byteOffset, length);
  }

  private take(length: number): Uint8Array {
    if (this.at + length > this.map.size) this.bad('it ends inside its header', this.map.size);
    const bytes = this.map.read(this.at, length);
    this.at += length;
    return bytes;
  }

  private bad(what: string, got?: unknown): never {
    throw new LpqError('LPQ_ARTIFACT', `${this.path} breaks a rule of GGUF: ${what.slice(0, 300)}`, {
      ...(got !== undefined && { got: String(got) }),
      hint: 'The file was damaged, or another program wrote it: pack the model again.',
    });
  }
}
