import type { NativeRuntime, OpParams } from './runtime.js';

/** The call's parameters with what the runtime multiplies in. */
export const multiplied = <P extends OpParams>(rt: NativeRuntime, p: P): P =>
  rt.products === 'bf16' && rt.device === 'cpu' ? { ...p, bf16: true } : p;
