import type { NativeRuntime, OpParams, Tensor, TimedCall } from '../../native/binding.js';
import { Ledger } from './ledger.js';

/** A runtime that writes operations down, to be timed again and again. */
export interface Recorder {
  /** Allocates and uploads as the runtime does. */
  readonly runtime: NativeRuntime;
  readonly calls: TimedCall[];
  /** The most bytes of tensors of `runtime` at once, as if what their makers let go of were free. */
  readonly peakBytes: number;
  /** Lets go of what the calls use, and of what `runtime` made and nobody let go of. */
  dispose(): void;
}

/**
 * Tensors of calls stay until dispose(), though their makers let go of them: each call has memory of its own. `runs`: operations also run,
 * on tensors that are 0 before, for steps that read back what they compute.
 */
export function record(rt: NativeRuntime, runs = false): Recorder {
  const calls: TimedCall[] = [];
  const ledger = new Ledger();
  const held = (tensors: readonly Tensor[]) => tensors.map((tensor) => ledger.view(tensor));
  const members: Partial<NativeRuntime> = {
    enqueue: (op: string, inputs: readonly Tensor[], outputs: readonly Tensor[], params?: OpParams): void => {
      calls.push({ op, inputs: held(inputs), outputs: held(outputs), ...(params && { params }) });
      if (runs) rt.enqueue(op, inputs, outputs, params);
    },
    allocate: (dtype, shape) => {
      const tensor = rt.allocate(dtype, shape);
      if (runs) rt.enqueue('zero', [], [tensor]);
      return ledger.adopt(tensor);
    },
    upload: (tensor) => ledger.adopt(rt.upload(tensor)),
  };
  const runtime = new Proxy(rt, {
    get: (target, name) => {
      if (Object.hasOwn(members, name)) return members[name as keyof NativeRuntime];
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
  const dispose = (): void => {
    for (const { inputs, outputs } of calls) for (const tensor of [...inputs, ...outputs]) tensor.dispose();
    calls.length = 0;
    ledger.dispose();
  };
  return {
    runtime,
    calls,
    get peakBytes() {
      return ledger.peak;
    },
    dispose,
  };
}
