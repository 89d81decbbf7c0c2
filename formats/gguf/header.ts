/** A value of the file's metadata: its kind (VALUE_KINDS), of arrays that of the elements, and what it is. */
export interface HeaderValue {
  readonly kind: number;
  readonly of?: number;
  readonly value: Scalar | readonly Scalar[];
}

type Scalar = number | boolean | string;

/** A tensor as the header describes it. */
export interface TensorInfo {
  readonly name: string;
  /** Fastest first. */
  readonly dims: readonly number[];
  readonly type: number;
  /** From the start of the data. */
  readonly offset: number;
}

export interface GgufHeader {
  readonly version: number;
  readonly metadata: ReadonlyMap<string, HeaderValue>;
  readonly tensors: readonly TensorInfo[];
  /** What offsets are multiples of. */
  readonly alignment: number;
  /** Where the data starts in the file, and the file's size. */
  readonly dataStart: number;
  readonly size: number;
}

/** Bytes of a file from a place on; native/binding.ts's MappedFile is one. */
export interface ByteSource {
  readonly size: number;
  read(offset: number, length: number): Uint8Array;
}

/** How a reader refuses a file: says what is wrong with it, and with which value. */
export type Refuse = (what: string, got?: unknown) => never;

/** Far more than any model has: a file that says more is damaged. */
export const MOST = 2 ** 24;
const CHUNK = 2 ** 20;
const STRING = 8;
const ARRAY = 9;

/** The kinds of plain values: their bytes, and how they are read. */
const KINDS: Readonly<
  Record<number, readonly [bytes: number, read: (view: DataView, at: number) => number | boolean]>
> = {
  0: [1, (view, at) => view.getUint8(at)],
  1: [1, (view, at) => view.getInt8(at)],
  2: [2, (view, at) => view.getUint16(at, true)],
  3: [2, (view, at) => view.getInt16(at, true)],
  4: [4, (view, at) => view.getUint32(at, true)],
  5: [4, (view, at) => view.getInt32(at, true)],
  6: [4, (view, at) => view.getFloat32(at, true)],
  7: [1, (view, at) => view.getUint8(at) !== 0],
  10: [8, (view, at) => Number(view.getBigUint64(at, true))],
  11: [8, (view, at) => Number(view.getBigInt64(at, true))],
  12: [8, (view, at) => view.getFloat64(at, true)],
};

/**
 * The header of a GGUF file of one of `versions` (2 and 3 have the same layout): everything before the data, of any program.
 * Every size is checked before it is believed; `refuse` throws.
 */
export function readHeader(file: ByteSource, versions: readonly number[], refuse: Refuse): GgufHeader {
  const cursor = new Cursor(file, refuse);
  if (new TextDecoder().decode(cursor.take(4)) !== 'GGUF') refuse('it does not start with GGUF');
  const version = cursor.u32();
  if (!versions.includes(version)) refuse(`its version is not ${versions.join(' or ')}`, version);
  const tensorCount = cursor.count('tensors');
  const keyCount = cursor.count('keys');
  const metadata = new Map<string, HeaderValue>();
  for (let i = 0; i < keyCount; i++) {
    const key = cursor.string();
    if (metadata.has(key)) refuse(`key '${key}' appears twice`);
    metadata.set(key, readValue(cursor, key, refuse));
  }
  const alignment = metadata.get('general.alignment')?.value ?? 32;
  if (typeof alignment !== 'number' || alignment < 8 || alignment % 8 !== 0)
    return refuse('general.alignment is not a multiple of 8', alignment);
  const tensors = Array.from({ length: tensorCount }, () => readInfo(cursor, refuse));
  const dataStart = Math.ceil(cursor.at / alignment) * alignment;
  return { version, metadata, tensors, alignment, dataStart, size: file.size };
}

function readInfo(cursor: Cursor, refuse: Refuse): TensorInfo {
  const name = cursor.string();
  const rank = cursor.u32();
  if (rank < 1 || rank > 3) refuse(`tensor '${name}' has ${rank} dimensions`, rank);
  const dims = Array.from({ length: rank }, () => cursor.u64());
  if (dims.some((size) => size < 1) || (dims[2] ?? 1) > MOST)
    refuse(`tensor '${name}' has a wrong shape`, dims.join(', '));
  return { name, dims, type: cursor.u32(), offset: cursor.u64() };
}

function readValue(cursor: Cursor, key: string, refuse: Refuse): HeaderValue {
  const kind = cursor.u32();
  if (kind === STRING) return { kind, value: cursor.string() };
  const plain = KINDS[kind];
  if (plain) return { kind, value: plain[1](cursor.view(plain[0]), 0) };
  if (kind !== ARRAY) return refuse(`key '${key}' has a value of type ${kind}, which lpq does not read`, kind);
  const of = cursor.u32();
  const length = cursor.u64();
  if (length > MOST) refuse(`key '${key}' has ${length} values`, length);
  if (of === STRING) return { kind, of, value: Array.from({ length }, () => cursor.string()) };
  const element = KINDS[of];
  if (!element) return refuse(`key '${key}' has values of type ${of}, which lpq does not read`, of);
  const [bytes, read] = element;
  const view = cursor.view(bytes * length);
  return { kind, of, value: Array.from({ length }, (_, i) => read(view, i * bytes)) };
}

/** Reads on and on, a large piece of the file at a time: headers hold hundreds of thousands of strings. */
class Cursor {
  at = 0;
  private chunk: Uint8Array = new Uint8Array(0);
  private start = 0;
  private readonly decoder = new TextDecoder();

  constructor(
    private readonly file: ByteSource,
    private readonly refuse: Refuse,
  ) {}

  count(what: string): number {
    const value = this.u64();
    if (value > MOST) this.refuse(`it claims ${value} ${what}`, value);
    return value;
  }

  u32(): number {
    return this.view(4).getUint32(0, true);
  }

  u64(): number {
    const value = this.view(8).getBigUint64(0, true);
    if (value > BigInt(Number.MAX_SAFE_INTEGER)) this.refuse('a number is too large for any file', value);
    return Number(value);
  }

  string(): string {
    return this.decoder.decode(this.take(this.u64()));
  }

  view(length: number): DataView {
    const bytes = this.take(length);
    return new DataView(bytes.buffer, bytes.byteOffset, length);
  }

  take(length: number): Uint8Array {
    const { file, at } = this;
    if (at + length > file.size) this.refuse('it ends inside its header', file.size);
    if (at + length > this.start + this.chunk.length) {
      this.chunk = file.read(at, Math.min(Math.max(length, CHUNK), file.size - at));
      this.start = at;
    }
    this.at += length;
    return this.chunk.subarray(at - this.start, at - this.start + length);
  }
}
