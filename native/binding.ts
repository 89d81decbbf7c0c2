import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { availableParallelism } from 'node:os';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { LpqError } from '../src/core/error.js';
import type { KernelChoice, KernelQuestion } from './kernel-choice.js';
import { addonPlaces, nameCudaKernels } from './places.js';
import type { MeasuredRuntime, NativeRuntime } from './runtime.js';
import type { Device, DType, MappedFile, NotFinite, Sha256, Tensor } from './tensor.js';

export type * from './kernel-choice.js';
export type * from './runtime.js';
export type * from './tensor.js';

interface Addon {
  allocate(dtype: DType, shape: readonly number[]): Tensor;
  operations(): string[];
  /** flock(2), exclusive, without waiting; closing the descriptor ends it. 'unsupported': the file system has no locks. */
  tryLock(fd: number): 'held' | 'busy' | 'unsupported';
  /** A mapped file that lost bytes while it was mapped: they read as zeros. */
  lostFile(): { path: string; reason: string } | undefined;
  isa(): 'generic' | 'avx2' | 'avx512' | 'avx512bf16';
  /** On threads beside JavaScript's; the bytes are kept until then. Throws LPQ_NATIVE_DTYPE for a dtype that has no such values. */
  notFinite(bytes: Tensor | Uint8Array, dtype: DType): Promise<NotFinite>;
  /** MXFP4 of a matrix, blocks U8 [N, K/2] and scales U8 [N, K/32], as out bf16 [K, N], on so many threads; returns when it is done. */
  decodeMxfp4(blocks: Uint8Array, scales: Uint8Array, n: number, k: number, out: Tensor, threads: number): void;
  /** E4M3 codes [N, K] times scales of blocks [ceil(N / blockN), columns], as out f32 [N, K]; likewise. */
  decodeFp8(
    codes: Uint8Array,
    scales: Float32Array,
    columns: number,
    blockN: number,
    blockK: number,
    out: Tensor,
    threads: number,
  ): void;
  /** Words of eight 4-bit codes times scales of groups of them, (code - 8) * scale, as out f32; likewise. */
  decodeInt4(words: Int32Array, scales: Float32Array, group: number, out: Tensor, threads: number): void;
  /** to[i, j] = from[rows[i], columns[j]] of matrices [R, C] or [R] of any dtype, on so many threads; undefined: as they are. */
  permuteMatrix(
    from: Tensor,
    to: Tensor,
    rows: Int32Array | undefined,
    columns: Int32Array | undefined,
    threads: number,
  ): void;
  /**
   * to[i, j] = from[i, j] * 2^(rows[i] + columns[j]) of f32, bf16, f16 [R, C] or [R], on so many threads. f16 rounds what falls below 2^-14.
   * Returns the place of the first element that leaves the type's range, -1 where none does.
   */
  raiseMatrix(from: Tensor, to: Tensor, rows: Int32Array, columns: Int32Array, threads: number): number;
  MappedFile: new (path: string) => MappedFile;
  /** Throws LPQ_NATIVE_OP where Node shows no OpenSSL. */
  Sha256: new () => Sha256;
  Runtime: new (
    threads: number,
    device?: number,
    vramLimit?: number,
    hostLimit?: number,
  ) => Omit<MeasuredRuntime, 'activationDtype' | 'momentDtype' | 'products'>;
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

let loaded: Addon | undefined;

/** The addon, loaded once. Throws LPQ_NATIVE_MISSING with the remedy. */
export function addon(): Addon {
  if (loaded) return loaded;
  const places = addonPlaces(path.dirname(fileURLToPath(import.meta.url)));
  const found = places.find((place) => existsSync(place));
  if (!found)
    throw new LpqError('LPQ_NATIVE_MISSING', 'the native addon lpq.node was not found', {
      expected: places.join(', '),
      hint: 'Run npm run build:native (needs cmake >= 3.22 and a C++20 compiler).',
    });
  nameCudaKernels(found);
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
    throw new LpqError('LPQ_FILE', `${lost.path} could not be read completely: ${lost.reason}`, {
      hint: 'Do not write to it while lpq reads it; fetch it again if it is damaged.',
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
  /** Of the CPU; default f32. */
  readonly products?: NativeRuntime['products'] | undefined;
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
    products = 'f32',
  } = typeof options === 'number' ? ({ threads: options } as RuntimeOptions) : options;
  const count = threadCount(threads);
  const ordinal = device === 'cpu' ? -1 : Number(device.slice('cuda:'.length));
  const runtime = newRuntime(count, ordinal, vramLimit ?? 0, hostLimit ?? 0);
  return Object.assign(runtime, {
    activationDtype: activationDtype ?? (device === 'cpu' ? 'f32' : 'bf16'),
    momentDtype: device === 'cpu' ? 'f64' : 'f32',
    products,
  } as const);
}

/** Threads of what takes no number of them: LPQ_THREADS, else every core. Throws LPQ_USAGE. */
export function threadCount(threads?: number): number {
  const text = process.env.LPQ_THREADS ?? '';
  const wish = threads ?? Number(text);
  if (!Number.isSafeInteger(wish) || wish < 0 || wish > MOST_THREADS)
    throw new LpqError('LPQ_USAGE', `${threads === undefined ? 'LPQ_THREADS' : 'threads'} is not a number of threads`, {
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
