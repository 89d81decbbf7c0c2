import { LpqError } from '../../src/core/error.js';
import { type Granularity, groupCount } from '../../src/core/granularity.js';
import type { TensorSpec } from '../safetensors/header.js';

/** What decides the shapes of an AWQ linear (the "GEMM" version, 4 bits). */
export interface AwqShape {
  /** [N, K]. */
  readonly shape: readonly [number, number];
  readonly granularity: Granularity;
}

/** The column of a run of eight that nibble i of a word holds. */
export const AWQ_ORDER: readonly number[] = [0, 2, 4, 6, 1, 3, 5, 7];

/** The nibble that holds column j of a run of eight: the inverse of AWQ_ORDER. */
export const AWQ_PLACE: readonly number[] = [0, 4, 1, 5, 2, 6, 3, 7];

/**
 * The tensors of linear `name`, spec.md's table: qweight, qzeros, scales and, if asked, bias. Throws LPQ_PACK naming the
 * module when the format cannot hold it.
 */
export function awqTensors(name: string, module: AwqShape & { readonly bias?: boolean }): TensorSpec[] {
  const problem = awqProblem(module);
  if (problem) throw new LpqError('LPQ_PACK', `module '${name}' does not fit the AWQ format: ${problem}`);
  const [n, k] = module.shape;
  const groups = groupCount(module.granularity, k);
  return [
    { name: `${name}.qweight`, dtype: 'I32', shape: [k, n / 8] },
    { name: `${name}.qzeros`, dtype: 'I32', shape: [groups, n / 8] },
    { name: `${name}.scales`, dtype: 'F16', shape: [groups, n] },
    ...(module.bias ? [{ name: `${name}.bias`, dtype: 'F16', shape: [n] } as const] : []),
  ];
}

/** Why a module cannot be stored, one clause; undefined when it can. */
export function awqProblem({ shape: [n, k], granularity }: AwqShape): string | undefined {
  if (!Number.isInteger(groupCount(granularity, k))) return `its groups do not divide K = ${k}`;
  if (n % 8 !== 0) return `N = ${n} is no multiple of 8, the columns of a word`;
  return undefined;
}
