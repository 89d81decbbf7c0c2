import {
  addon,
  allocate,
  createRuntime,
  type NativeRuntime,
  type OpParams,
  type Tensor,
} from '../../native/binding.js';

/** cuda:N: tests of operations run on that device; else on the CPU. */
const device = process.env.LPQ_TEST_OPERATIONS;

/** Whether operations sum in f32 where the CPU sums in double, and tell of bad data in other words. */
export const onDevice = device !== undefined;

/**
 * How much wider a bound of one rounding is where an operation is computed in f32 throughout: `steps` roundings one after another, each of
 * something no larger than what the bound is of; CUDA's exp, log and tanh are good to 2 ulp and count as four.
 */
export const steps = (count: number): number => (onDevice ? count : 1);

/** Host tensors through operations of a device: inputs go there when they are enqueued, outputs come back with sync(). */
class MirroredRuntime
  implements Pick<NativeRuntime, 'enqueue' | 'sync' | 'allocate' | 'device' | 'activationDtype' | 'products'>
{
  readonly device: NativeRuntime['device'];
  readonly activationDtype = 'f32';
  readonly products: NativeRuntime['products'];
  private readonly there = new Map<Tensor, Tensor>();
  private readonly written = new Set<Tensor>();

  constructor(private readonly rt: NativeRuntime) {
    this.device = rt.device;
    this.products = rt.products;
  }

  allocate = allocate;

  enqueue(op: string, inputs: readonly Tensor[], outputs: readonly Tensor[], params: OpParams = {}): void {
    const put = (tensor: Tensor): Tensor => {
      const found = this.there.get(tensor);
      if (found) return found;
      const uploaded = this.rt.upload(tensor);
      this.there.set(tensor, uploaded);
      return uploaded;
    };
    this.rt.enqueue(op, inputs.map(put), outputs.map(put), params);
    for (const tensor of outputs) this.written.add(tensor);
    for (const tensor of inputs) if (!this.written.has(tensor)) this.forget(tensor);
  }

  async sync(): Promise<void> {
    try {
      await this.rt.sync();
      for (const tensor of this.written) {
        const host = await this.rt.download(this.there.get(tensor) as Tensor);
        tensor.bytes().set(host.bytes());
      }
    } finally {
      for (const tensor of [...this.there.keys()]) this.forget(tensor);
      this.written.clear();
    }
  }

  /** What a caller changes between calls goes there again. */
  private forget(tensor: Tensor): void {
    this.there.get(tensor)?.dispose();
    this.there.delete(tensor);
  }
}

/** A runtime of so many threads, which a device does not tell apart. */
export function runtimeOf(threads: number, products: 'f32' | 'bf16' = 'f32'): NativeRuntime {
  if (device === undefined) return createRuntime({ threads, products });
  const there = createRuntime({ device: device as 'cuda:0', activationDtype: 'f32', products });
  return new MirroredRuntime(there) as unknown as NativeRuntime;
}

/** What tests of operations enqueue on. */
export const rt = runtimeOf(2);

/** Whether an error is the one that a test provokes; faults that a device finds are told in words of their own. */
export function isFailure(error: { code?: string; message: string }, code: string, words: RegExp): boolean {
  return error.code === code && (onDevice || words.test(error.message));
}

/** Whether there is such a device. */
export const hasDevice = (): boolean => (addon().cudaDevices?.().length ?? 0) > 0;
