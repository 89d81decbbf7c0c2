import { ggufTarget } from '../gguf/target.js';
import type { PackTarget } from '../target.js';

/** Blocks from the codes, and the types that are searched for. */
export const gguf: PackTarget = ggufTarget();

export const ggufSearched: readonly PackTarget[] = (['q2_k', 'q3_k', 'q4_k', 'q5_k', 'q6_k', 'q8_0'] as const).map(
  (type) => ggufTarget(type),
);
