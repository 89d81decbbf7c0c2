import type { Device, DType, Tensor } from './tensor.js';

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
  /** What the CPU multiplies in linears and second moments (native/cpu/linalg/gemm.h), f32 unless set; may change between calls. */
  products?: 'f32' | 'bf16' | undefined;
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
  /**
   * Lowers the limit of device memory by so many bytes for good, for another runtime of the device; false where what is held leaves no
   * room for that, and on the CPU.
   */
  lend(bytes: number): boolean;
  /** Peaks start again from what is held now. */
  resetPeak(): void;
  /** On the CPU a name in `params` that the operation does not ask for fails it, with LPQ_NATIVE_PARAM. */
  enqueue(op: string, inputs: readonly Tensor[], outputs: readonly Tensor[], params?: OpParams): void;
  /** Keeps a copy of what is enqueued from now on, until recorded(). On the CPU only. */
  record(): void;
  /** Ends record(). Undefined where the queue was waited for or something was read since. */
  recorded(): Recording | undefined;
  /** Enqueues all calls of a recording again, on the same tensors, as one: JavaScript has nothing else to do. */
  replay(recording: Recording): void;
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

/** Calls with their tensors, which it keeps from being let go of. */
export interface Recording {
  /**
   * Whether both have the same calls on the same tensors. Those that allocate() made while recording may differ, if they stand in the
   * same places.
   */
  matches(other: Recording): boolean;
  dispose(): void;
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
