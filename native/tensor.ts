/** Element types of native tensors. f8_* and bool are one byte; f16 and bf16 are seen from JavaScript as raw u16. */
export type DType =
  | 'f64'
  | 'f32'
  | 'f16'
  | 'bf16'
  | 'f8_e4m3'
  | 'f8_e5m2'
  | 'f8_e8m0'
  | 'i64'
  | 'i32'
  | 'i16'
  | 'i8'
  | 'u64'
  | 'u32'
  | 'u16'
  | 'u8'
  | 'bool';

export type Device = 'cpu' | `cuda:${number}`;

/** A native tensor, row-major and contiguous. Memory is freed when the last view is disposed of or collected. */
export interface Tensor {
  readonly dtype: DType;
  readonly shape: readonly number[];
  readonly byteLength: number;
  readonly device: Device;
  /** In pinned host memory, by NativeRuntime.park(); `device` is 'cpu' then. */
  readonly parked: boolean;
  /**
   * The bytes themselves, not a copy (at most 2 GiB at once). Never write to a tensor of a mapped file. Throws for a
   * tensor of another device than the CPU: download it; and for a parked one whose copy has not ended: await mark().
   */
  bytes(offset?: number, length?: number): Uint8Array<ArrayBuffer>;
  /** The same storage under another shape, starting `firstElement` elements in. */
  view(shape: readonly number[], firstElement?: number): Tensor;
  /** Lets go of the memory now; queued operations that use it still finish. */
  dispose(): void;
}

/** A read-only memory map. */
export interface MappedFile {
  readonly size: number;
  /** A copy of a byte range. */
  read(offset: number, length: number): Uint8Array<ArrayBuffer>;
  /** A zero-copy, read-only view; it keeps the mapping alive. */
  tensor(dtype: DType, shape: readonly number[], offset: number): Tensor;
  advise(advice: 'willneed' | 'dontneed', offset: number, length: number): void;
  close(): void;
}

/** A running SHA-256: the digest of Node's OpenSSL, on threads beside JavaScript's. */
export interface Sha256 {
  /**
   * Settles when the bytes have been hashed, in the order of the calls. They are kept until then, though their tensor be
   * disposed of.
   */
  update(bytes: Tensor | Uint8Array): Promise<void>;
  /** The hex digits, once every update has settled. */
  digest(): string;
}

/** How many elements are NaN or infinite, and the index of the first of either; -1 where there is none. */
export interface NotFinite {
  readonly nan: number;
  readonly infinite: number;
  readonly first: number;
}
