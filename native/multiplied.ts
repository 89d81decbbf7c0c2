import type { NativeRuntime, OpParams } from './runtime.js';

/** The call's parameters with what the runtime multiplies in; on a device only f32 is rounded (src/tune/runtime.ts). */
export const multiplied = <P extends OpParams>(rt: NativeRuntime, p: P): P =>
  rt.products === 'bf16' && (rt.device === 'cpu' || rt.activationDtype === 'f32') ? { ...p, bf16: true } : p;
