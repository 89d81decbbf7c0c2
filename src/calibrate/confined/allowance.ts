import type { Budget } from './host.js';

/** What model files may use of the machine to run. */
export interface Allowance {
  /** Seconds of processor time to be opened. */
  readonly open: number;
  /** Of each call, and of it for each character or token more. */
  readonly call: number;
  readonly each: number;
  /** MiB. */
  readonly memory: number;
}

/**
 * Far more than honest tokenizers take: the bundled one opens in 0.1 s of processor time and takes some 2 µs a character.
 */
export const GENEROUS: Allowance = { open: 200, call: 30, each: 2e-4, memory: 4096 };

export function budgetFor({ open, memory }: Allowance): Budget {
  return { seconds: open, memory };
}

/** Of a call about `size` characters or tokens. */
export function secondsFor({ call, each }: Allowance, size: number): number {
  return call + each * size;
}
