import { createRuntime, type NativeRuntime } from './binding.js';

const known = new WeakMap<NativeRuntime, NativeRuntime[]>();

/**
 * Makes up to `count` runtimes beside one of a CUDA device, on the same device, each with a stream of its own and `bytes` of the memory that
 * `rt` had: work of many small parts fills a device better on several streams. Made once for a runtime; none on the CPU.
 */
export function makeBeside(rt: NativeRuntime, count: number, bytes: number): void {
  if (known.has(rt)) return;
  const made: NativeRuntime[] = [];
  known.set(rt, made);
  const { device, activationDtype } = rt;
  while (made.length < count && rt.lend(bytes)) made.push(createRuntime({ device, vramLimit: bytes, activationDtype }));
}

/** The runtimes that were made beside this one, or are said to be. */
export function besideOf(rt: NativeRuntime): readonly NativeRuntime[] {
  return known.get(rt) ?? [];
}

/** Says which runtimes stand beside this one. */
export function putBeside(rt: NativeRuntime, others: readonly NativeRuntime[]): void {
  known.set(rt, [...others]);
}

/** These runtimes and those beside them. */
export function withBeside(rts: Iterable<NativeRuntime>): NativeRuntime[] {
  return [...rts].flatMap((rt) => [rt, ...besideOf(rt)]);
}
