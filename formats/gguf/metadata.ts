/** A value of GGUF's metadata. */
export type GgufValue =
  | { readonly type: 'u32' | 'i32' | 'f32'; readonly value: number }
  | { readonly type: 'bool'; readonly value: boolean }
  | { readonly type: 'string'; readonly value: string }
  | { readonly type: 'strings'; readonly value: readonly string[] }
  | { readonly type: 'f32s' | 'i32s'; readonly value: readonly number[] }
  | { readonly type: 'bools'; readonly value: readonly boolean[] };

/** Keys in the order of the file. */
export type GgufMetadata = ReadonlyMap<string, GgufValue>;

/** The numbers of the value types in the file. */
export const VALUE_TYPES = { u32: 4, i32: 5, f32: 6, bool: 7, string: 8, array: 9 } as const;

export const text = (value: string): GgufValue => ({ type: 'string', value });
export const u32 = (value: number): GgufValue => ({ type: 'u32', value });
export const f32 = (value: number): GgufValue => ({ type: 'f32', value });
export const bool = (value: boolean): GgufValue => ({ type: 'bool', value });

/** Little-endian bytes that grow. */
export class ByteSink {
  private readonly chunks: Uint8Array[] = [];
  private size = 0;

  get length(): number {
    return this.size;
  }

  bytes(bytes: Uint8Array): void {
    this.chunks.push(bytes);
    this.size += bytes.length;
  }

  u32(value: number): void {
    const bytes = new Uint8Array(4);
    new DataView(bytes.buffer).setUint32(0, value, true);
    this.bytes(bytes);
  }

  u64(value: number): void {
    const bytes = new Uint8Array(8);
    new DataView(bytes.buffer).setBigUint64(0, BigInt(value), true);
    this.bytes(bytes);
  }

  string(value: string): void {
    const bytes = new TextEncoder().encode(value);
    this.u64(bytes.length);
    this.bytes(bytes);
  }

  /** Zeros up to a multiple of `alignment`. */
  pad(alignment: number): void {
    const over = this.size % alignment;
    if (over > 0) this.bytes(new Uint8Array(alignment - over));
  }

  joined(): Uint8Array {
    return Buffer.concat(this.chunks);
  }
}

/** One key and its value, as they lie in the file. */
export function writeEntry(sink: ByteSink, key: string, entry: GgufValue): void {
  sink.string(key);
  switch (entry.type) {
    case 'string':
      sink.u32(VALUE_TYPES.string);
      sink.string(entry.value);
      return;
    case 'strings':
      sink.u32(VALUE_TYPES.array);
      sink.u32(VALUE_TYPES.string);
      sink.u64(entry.value.length);
      for (const value of entry.value) sink.string(value);
      return;
    case 'f32s':
    case 'i32s': {
      const kind = entry.type === 'f32s' ? 'f32' : 'i32';
      sink.u32(VALUE_TYPES.array);
      sink.u32(VALUE_TYPES[kind]);
      sink.u64(entry.value.length);
      const values = kind === 'f32' ? Float32Array.from(entry.value) : Int32Array.from(entry.value);
      sink.bytes(new Uint8Array(values.buffer));
      return;
    }
    case 'bools':
      sink.u32(VALUE_TYPES.array);
      sink.u32(VALUE_TYPES.bool);
      sink.u64(entry.value.length);
      sink.bytes(Uint8Array.from(entry.value, Number));
      return;
    case 'bool':
      sink.u32(VALUE_TYPES.bool);
      sink.bytes(Uint8Array.of(entry.value ? 1 : 0));
      return;
    default: {
      sink.u32(VALUE_TYPES[entry.type]);
      const bytes = new Uint8Array(4);
      const view = new DataView(bytes.buffer);
      if (entry.type === 'f32') view.setFloat32(0, entry.value, true);
      else if (entry.type === 'i32') view.setInt32(0, entry.value, true);
      else view.setUint32(0, entry.value, true);
      sink.bytes(bytes);
    }
  }
}
