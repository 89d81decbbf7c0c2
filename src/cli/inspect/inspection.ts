import type { TensorReader } from '../../../formats/safetensors/read.js';

/** What `lpq inspect` found: as data for --json, and as text. */
export interface Inspection {
  readonly data: Record<string, unknown>;
  readonly text: string;
}

/** Bytes of a tensor in its file. */
export function tensorBytes(weights: TensorReader, name: string): number {
  const { begin, end } = weights.spec(name);
  return end - begin;
}

export function sum(values: readonly number[]): number {
  return values.reduce((a, b) => a + b, 0);
}
