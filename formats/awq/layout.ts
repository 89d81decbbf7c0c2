import { LpqError } from '../../src/core/error.js';
import { type Granularity, groupCount } from '../../src/core/granularity.js';
import type { TensorSpec } from '../safetensors/header.js';

/** What decides the shapes of an AWQ linear (the "GEMM" version, 4 bits). */
export interface AwqShape {
  /** [N, K]. */
  readonly shape: readonly [number, number];
  readonly granularity: Granularity;
}

/**
 * The tensors of linear `name`, spec.md's table: qweight, qzeros and scales. Throws LPQ_PACK naming the
 * module when the format cannot hold it.
 */
export function awqTensors(name: string, module: AwqShape): TensorSpec[] {
  const problem = awqProblem(module);
  if (problem) throw new LpqError('LPQ_PACK', `module '${name}' does not fit the AWQ format: ${problem}`);
  const [n, k] = module.shape;
  const groups = groupCount(module.granularity, k);
  return [
    { name: `${name}.qweight`, dtype: 'I32', shape: [k, n / 8] },
    { name: `${name}.qzeros`, dtype: 'I32', shape: [groups, n / 8] },
    { name: `${name}.scales`, dtype: 'F16', shape: [groups, n] },
  ];
}

/** Why a module cannot be stored, one clause; undefined when it can. */
export function awqProblem({ shape: [n, k], granularity }: AwqShape): string | undefined {
  if (!Number.isInteger(groupCount(granularity, k))) return `its groups do not divide K = ${k}`;
  if (n % 8 !== 0) return `N = ${n} is not a multiple of 8, the columns of a word`;
  return undefined;
}
