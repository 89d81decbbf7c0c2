import type { DType, NativeRuntime, Tensor } from '../../../native/binding.js';
import { ops } from '../../../native/ops.js';
import type { TokenCodes } from '../../../native/token-codes.js';

/** Codes that the operation which made an activation [T,C] has made beside it, until the linear takes them. */
const made = new WeakMap<Tensor, TokenCodes>();

function allocate(rt: NativeRuntime, x: Tensor, dtype: DType): TokenCodes {
  return { codes: rt.allocate(dtype, x.shape), scales: rt.allocate('f32', [x.shape[0] as number]) };
}

/** Room for codes [T,C] of x, of the dtype that the only linear which reads x multiplies, and for their scales f32 [T]; undefined without one. */
export function codesBeside(rt: NativeRuntime, x: Tensor, dtype: DType | undefined): TokenCodes | undefined {
  if (dtype === undefined) return undefined;
  const codes = allocate(rt, x, dtype);
  made.set(x, codes);
  return codes;
}

/** Codes of x that are there, or made now. The caller lets go of them. */
export function takeCodes(rt: NativeRuntime, x: Tensor, dtype: DType): TokenCodes {
  const beside = made.get(x);
  if (beside?.codes.dtype === dtype) {
    made.delete(x);
    return beside;
  }
  const now = allocate(rt, x, dtype);
  ops.quantizeTokens(rt, x, now);
  return now;
}
