import type { NativeRuntime } from '../../../native/binding.js';

/** Bytes that training on the model's end takes at a time. */
export interface Sizes {
  /** What the unquantized model's head reads, held for later steps. */
  readonly held: number;
  /** What that model makes of it at a time, with the streams before it. */
  readonly atOnce: number;
  /** Passes of blocks that are kept for the way back; blocks before them are computed again. */
  readonly kept: number;
  /** One of the two matrices of logits that a part of the tokens has. */
  readonly logits: number;
}

export const ON_HOST: Sizes = { held: 2 ** 29, atOnce: 2 ** 27, kept: 2 ** 30, logits: 2 ** 26 };

/** Shares of what a device may use, and logits that keep its products busy. */
export function sizesOf(rt: NativeRuntime): Sizes {
  const limit = rt.memory()?.limit;
  if (rt.device === 'cpu' || limit === undefined) return ON_HOST;
  return { held: limit / 5, atOnce: limit / 5, kept: limit / 8, logits: Math.min(2 ** 30, limit / 24) };
}
