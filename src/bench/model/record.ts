import type { NativeRuntime, OpParams, Tensor, TimedCall } from '../../../native/binding.js';

/** A runtime that writes operations down instead of running them, to be timed again and again. */
export interface Recorder {
  /** Allocates and uploads as the runtime does. */
  readonly runtime: NativeRuntime;
  readonly calls: TimedCall[];
  /** Lets go of what the calls use. */
  dispose(): void;
}

/** Tensors of calls stay until dispose(), though their makers let go of them: each call has memory of its own. */
export function record(rt: NativeRuntime): Recorder {
  const calls: TimedCall[] = [];
  const held = (tensors: readonly Tensor[]) => tensors.map((tensor) => tensor.view(tensor.shape));
  const enqueue = (op: string, inputs: readonly Tensor[], outputs: readonly Tensor[], params?: OpParams): void => {
    calls.push({ op, inputs: held(inputs), outputs: held(outputs), ...(params && { params }) });
  };
  const runtime = new Proxy(rt, {
    get: (target, name) => {
      if (name === 'enqueue') return enqueue;
      const value: unknown = Reflect.get(target, name, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
  const dispose = (): void => {
    for (const { inputs, outputs } of calls) for (const tensor of [...inputs, ...outputs]) tensor.dispose();
    calls.length = 0;
  };
  return { runtime, calls, dispose };
}
