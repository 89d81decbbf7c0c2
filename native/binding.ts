import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { LpqError } from '../src/core/error.js';

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

export type OpParams = Record<string, number | string | boolean | readonly number[] | undefined>;

/**
 * An in-order queue of operations on one device, the shape of a CUDA stream: `enqueue` returns at once, `sync` settles
 * when everything enqueued before it has run. After a failure the queue drops what follows until `sync` has told of it.
 */
export interface NativeRuntime {
  readonly threads: number;
  readonly device: Device;
  /** What linears read: f32 on the CPU; on CUDA 16 bits, so that tensor cores multiply them exactly. */
  readonly activationDtype: 'f32' | 'bf16' | 'f16';
  /** Of second moments: f64 on the CPU; f32 on CUDA, where sums over at most a batch of rows are added to it. */
  readonly momentDtype: 'f64' | 'f32';
  /** A tensor of uninitialised memory on this device; the caller disposes of it. */
  allocate(dtype: DType, shape: readonly number[]): Tensor;
  /** `tensor`, of the CPU, on this device: a copy that arrives in time, or a view where nothing needs copying. */
  upload(tensor: Tensor): Tensor;
  /** Waits like sync(), then `tensor` in the CPU's memory: a copy, or a view where nothing needs copying. */
  download(tensor: Tensor): Promise<Tensor>;
  /**
   * A copy of what `tensor` will hold after everything enqueued so far, in pinned host memory; a view on the CPU. The copy
   * runs beside computing. `tensor` may be disposed of at once (its memory is free once the copy has ended) and written
   * by operations enqueued later. Behind a failure the copy is dropped, and using the result fails. Throws
   * LPQ_HOST_MEMORY.
   */
  park(tensor: Tensor): Tensor;
  /**
   * A parked tensor, also of another runtime's, on this device again, in memory of its own; a view on the CPU. It starts as
   * soon as what was launched before has run, and operations enqueued later wait for it: ask a step ahead. `parked` may be
   * disposed of at once. A tensor that is there already is a view; a pageable one is uploaded. Throws LPQ_CUDA_MEMORY.
   */
  restore(parked: Tensor): Tensor;
  /**
   * A copy of a tensor of another CUDA runtime, of this or another device, whose contents are there (its runtime's sync() or
   * mark() has settled); of one of this runtime; or upload(). It runs beside computing; operations enqueued later wait for
   * it. `tensor` may be disposed of at once, but must not be written before this runtime's mark() has settled.
   */
  copyFrom(tensor: Tensor): Tensor;
  /** Bytes of device memory; undefined on the CPU. */
  memory(): DeviceMemory | undefined;
  /** Peaks start again from what is held now. */
  resetPeak(): void;
  /** On the CPU a name in `params` that the operation does not ask for fails it, with LPQ_NATIVE_PARAM. */
  enqueue(op: string, inputs: readonly Tensor[], outputs: readonly Tensor[], params?: OpParams): void;
  sync(): Promise<void>;
  /**
   * Settles when everything enqueued so far has run, copies included, while what is enqueued later runs on without a gap.
   * Rejects with the failure of anything before it; sync() tells of that failure too, and ends it.
   */
  mark(): Promise<void>;
  /** Stops the running operation within 0.2 s and drops the rest; the next `sync` rejects with LPQ_ABORTED. */
  abort(): void;
  /** Work units of the running operation, for polling. */
  progress(): { done: number; total: number };
  /** Calls and seconds of each operation since the last call. */
  profile(): Record<string, { calls: number; seconds: number }>;
}

/** A queue that can be measured: what createRuntime() makes. */
export interface MeasuredRuntime extends NativeRuntime {
  /**
   * In its turn, passes over `calls` again and again, and gives the seconds of each pass (of the device's clock where it has
   * one), after some that do not count. Launches are recorded once and replayed, so that they cost the host nothing, unless
   * `graph` is false, which operations that copy from the host need. Settles like sync().
   */
  time(calls: readonly TimedCall[], options?: TimingOptions): Promise<number[]>;
  /** What the device's sensors say now; undefined on the CPU and where the driver's management library is missing. */
  telemetry(): Telemetry | undefined;
}

/** An operation as enqueue() takes it. */
export interface TimedCall {
  readonly op: string;
  readonly inputs: readonly Tensor[];
  readonly outputs: readonly Tensor[];
  readonly params?: OpParams;
}

export interface TimingOptions {
  /** That count; default 9. */
  readonly passes?: number;
  /** Pass for so long instead. */
  readonly seconds?: number;
  readonly graph?: boolean;
}

/** MHz, watts, degrees Celsius; limits: the bits of NVML's clock event reasons. What the device does not tell is missing. */
export interface Telemetry {
  readonly smClock?: number;
  readonly memoryClock?: number;
  readonly power?: number;
  readonly powerLimit?: number;
  readonly temperature?: number;
  readonly limits?: number;
}

/**
 * used: by tensors and scratch; reserved: taken from the driver; parked: host memory of parked tensors; pinned: all that is
 * held for them.
 */
export interface DeviceMemory {
  readonly used: number;
  readonly reserved: number;
  readonly peakUsed: number;
  readonly peakReserved: number;
  readonly limit: number;
  readonly parked: number;
  readonly peakParked: number;
  readonly pinned: number;
}

interface Addon {
  allocate(dtype: DType, shape: readonly number[]): Tensor;
  operations(): string[];
  /** flock(2), exclusive, without waiting; closing the descriptor ends it. 'unsupported': the file system has no locks. */
  tryLock(fd: number): 'held' | 'busy' | 'unsupported';
  /** A mapped file that lost bytes while it was mapped: they read as zeros. */
  lostFile(): { path: string; reason: string } | undefined;
  isa(): 'generic' | 'avx2' | 'avx512';
  /** On threads beside JavaScript's; the bytes are kept until then. Throws LPQ_NATIVE_DTYPE for a dtype that has no such values. */
  notFinite(bytes: Tensor | Uint8Array, dtype: DType): Promise<NotFinite>;
  MappedFile: new (path: string) => MappedFile;
  /** Throws LPQ_NATIVE_OP where Node shows no OpenSSL. */
  Sha256: new () => Sha256;
  Runtime: new (
    threads: number,
    device?: number,
    vramLimit?: number,
    hostLimit?: number,
  ) => Omit<MeasuredRuntime, 'activationDtype' | 'momentDtype'>;
  /** Throws LPQ_CUDA_DRIVER. arch: 10 * major + minor of the compute capability; memory, l2: bytes. */
  cudaDevices(): { name: string; arch: number; memory: number; l2: number; multiprocessors: number }[];
  cudaOperations(): string[];
  /**
   * Which kernels a product of packed weights runs on a device, and why. Throws LPQ_CUDA_DEVICE, LPQ_NATIVE_ARGUMENT,
   * LPQ_NATIVE_PARAM; LPQ_CUDA_DRIVER for the number of a device.
   */
  explainKernel(product: KernelQuestion): KernelChoice;
  /** Where the settings that were timed for a device are kept ('': nowhere), and of what they are. Throws LPQ_CUDA_DRIVER. */
  kernelTuning(device: number): { path: string; device: string; driver: number };
}

/** A product y [M,N] = x [M,K] Wᵀ, and the device: an ordinal, or h200, h100, a100, rtx4090, rtx3090 without one. */
export interface KernelQuestion {
  readonly device: number | string;
  readonly layout: string;
  readonly type: string;
  readonly m: number;
  readonly n: number;
  readonly k: number;
  /** 32, 64, 128; 0: one scale a row. */
  readonly group: number;
  readonly activations: 'f16' | 'bf16';
  readonly scales?: 'f16' | 'bf16' | 'u8';
  readonly zeros?: 'u8' | 'f16' | 'i32';
  readonly zero?: number;
  readonly bias?: boolean;
}

export interface KernelChoice {
  readonly device: string;
  /** Settings that were timed decided. */
  readonly tuned: boolean;
  /** Bytes of scratch. */
  readonly workspace: number;
  readonly launches: readonly {
    readonly kernel: string;
    readonly grid: number;
    readonly threads: number;
    readonly shared: number;
    readonly cluster: number;
    readonly text: string;
  }[];
  /** A sentence each. */
  readonly reasons: readonly string[];
}

let loaded: Addon | undefined;

/** The addon, loaded once. Throws LPQ_NATIVE_MISSING with the remedy. */
export function addon(): Addon {
  if (loaded) return loaded;
  const here = path.dirname(fileURLToPath(import.meta.url));
  const places = [
    process.env.LPQ_ADDON,
    path.join(here, 'build', 'lpq.node'), // run from source
    path.join(here, '..', '..', 'native', 'build', 'lpq.node'), // dist/native -> native/build
    path.join(here, '..', 'lpq.node'), // a bundle
  ].filter((place): place is string => place !== undefined && place !== '');
  const found = places.find((place) => existsSync(place));
  if (!found)
    throw new LpqError('LPQ_NATIVE_MISSING', 'the native addon lpq.node was not found', {
      expected: places.join(', '),
      hint: 'Run npm run build:native (needs cmake >= 3.22 and a C++20 compiler).',
    });
  let candidate: Addon;
  try {
    candidate = createRequire(import.meta.url)(found) as Addon;
  } catch (cause) {
    throw new LpqError('LPQ_NATIVE_MISSING', `the native addon ${found} cannot be loaded`, {
      cause,
      hint: 'Rebuild it on this machine: npm run build:native.',
    });
  }
  if (typeof candidate.lostFile !== 'function')
    throw new LpqError('LPQ_NATIVE_MISSING', `${found} is not the native addon of this version of lpq`, {
      hint: 'Rebuild it: npm run build:native.',
    });
  loaded = candidate;
  return loaded;
}

/**
 * Throws LPQ_FILE where a mapped file lost bytes (it was truncated, its disk failed): what was computed from it may be wrong. Called
 * before anything is committed, noted as finished or told as a result.
 */
export function requireWholeFiles(): void {
  const lost = loaded?.lostFile();
  if (lost)
    throw new LpqError('LPQ_FILE', `${lost.path} was not read whole: ${lost.reason}`, {
      hint: 'Let nothing write to it while lpq reads it; fetch it again if it is damaged.',
    });
}

/** A tensor of uninitialised memory. */
export function allocate(dtype: DType, shape: readonly number[]): Tensor {
  return addon().allocate(dtype, shape);
}

/** A tensor holding a copy of `data` (its bytes, little-endian). */
export function fromTyped(dtype: DType, shape: readonly number[], data: ArrayBufferView): Tensor {
  const tensor = allocate(dtype, shape);
  if (tensor.byteLength !== data.byteLength)
    throw new LpqError('LPQ_INTERNAL', `a tensor of ${tensor.byteLength} bytes was given ${data.byteLength}`);
  if (data.byteLength > 0) tensor.bytes().set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength));
  return tensor;
}

/** A tensor on the runtime's device holding a copy of `data`. */
export function uploadTyped(rt: NativeRuntime, dtype: DType, shape: readonly number[], data: ArrayBufferView): Tensor {
  const host = fromTyped(dtype, shape, data);
  const tensor = rt.upload(host);
  host.dispose();
  return tensor;
}

/** The elements of a tensor of any device, as a typed array of their own, once everything enqueued has run. */
export async function readTyped<T = Float32Array<ArrayBuffer>>(rt: NativeRuntime, tensor: Tensor): Promise<T> {
  const host = await rt.download(tensor);
  const values = typed<ArrayLike<number> & { slice(): T }>(host).slice();
  host.dispose();
  return values;
}

/** The elements as a typed array over the tensor's own memory (f16/bf16 as Uint16Array, f8 and bool as Uint8Array). */
export function typed<T = Float32Array<ArrayBuffer>>(tensor: Tensor): T {
  const bytes = tensor.bytes();
  const length = tensor.shape.reduce((a, b) => a * b, 1);
  const make = {
    f64: Float64Array,
    f32: Float32Array,
    f16: Uint16Array,
    bf16: Uint16Array,
    f8_e4m3: Uint8Array,
    f8_e5m2: Uint8Array,
    f8_e8m0: Uint8Array,
    i64: BigInt64Array,
    i32: Int32Array,
    i16: Int16Array,
    i8: Int8Array,
    u64: BigUint64Array,
    u32: Uint32Array,
    u16: Uint16Array,
    u8: Uint8Array,
    bool: Uint8Array,
  }[tensor.dtype];
  // Views of mapped files may start at any byte; a typed array may not.
  if (bytes.byteOffset % make.BYTES_PER_ELEMENT !== 0 || length === 0)
    return new make(bytes.slice().buffer, 0, length) as unknown as T;
  return new make(bytes.buffer, bytes.byteOffset, length) as unknown as T;
}

/** Maps a file. Throws LPQ_FILE. */
export function mapFile(file: string): MappedFile {
  try {
    return new (addon().MappedFile)(file);
  } catch (cause) {
    if (cause instanceof LpqError) throw cause;
    throw new LpqError('LPQ_FILE', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
}

/** More threads than any host has cores; thousands of idle ones only cost memory. */
export const MOST_THREADS = 1024;

export interface RuntimeOptions {
  readonly device?: Device;
  /** Of the CPU: default LPQ_THREADS, else every core. */
  readonly threads?: number | undefined;
  /** Bytes of device memory that may be taken from the driver; default: all there is. */
  readonly vramLimit?: number | undefined;
  /** Bytes of pinned host memory that may be taken for parked tensors; default: what the system grants. */
  readonly hostLimit?: number | undefined;
  /** Default: f32 on the CPU, bf16 on CUDA. */
  readonly activationDtype?: NativeRuntime['activationDtype'];
}

/**
 * A queue of its own on a device; a number stands for that many threads of the CPU. Native codes are thrown as they are:
 * LPQ_CUDA_DRIVER, LPQ_CUDA_DEVICE, LPQ_CUDA_KERNELS. Throws LPQ_USAGE for an LPQ_THREADS that is no such number,
 * LPQ_MEMORY when the system does not grant the threads.
 */
export function createRuntime(options: number | RuntimeOptions = {}): MeasuredRuntime {
  const {
    device = 'cpu',
    threads,
    vramLimit,
    hostLimit,
    activationDtype,
  } = typeof options === 'number' ? ({ threads: options } as RuntimeOptions) : options;
  const count = threadCount(threads);
  const ordinal = device === 'cpu' ? -1 : Number(device.slice('cuda:'.length));
  const runtime = newRuntime(count, ordinal, vramLimit ?? 0, hostLimit ?? 0);
  return Object.assign(runtime, {
    activationDtype: activationDtype ?? (device === 'cpu' ? 'f32' : 'bf16'),
    momentDtype: device === 'cpu' ? 'f64' : 'f32',
  } as const);
}

function threadCount(threads: number | undefined): number {
  const text = process.env.LPQ_THREADS ?? '';
  const wish = threads ?? Number(text);
  if (!Number.isSafeInteger(wish) || wish < 0 || wish > MOST_THREADS)
    throw new LpqError('LPQ_USAGE', `${threads === undefined ? 'LPQ_THREADS' : 'threads'} is no number of threads`, {
      got: threads ?? text,
      expected: `1 to ${MOST_THREADS}, or 0 for every core`,
    });
  return wish > 0 ? wish : availableParallelism();
}

function newRuntime(threads: number, ordinal: number, vramLimit: number, hostLimit: number) {
  try {
    return new (addon().Runtime)(threads, ordinal, vramLimit, hostLimit);
  } catch (cause) {
    if ((cause as { code?: string }).code !== 'LPQ_NATIVE_MEMORY') throw cause;
    throw new LpqError('LPQ_MEMORY', (cause as Error).message, { cause, hint: 'Use fewer, with --threads.' });
  }
}
