import { LpqError } from '../../src/core/error.js';
import { type Granularity, groupCount } from '../../src/core/granularity.js';
import type { TensorSpec } from '../safetensors/header.js';

/** What decides the shapes of a GPTQ linear. */
export interface GptqShape {
  readonly bits: number;
  /** [N, K]. */
  readonly shape: readonly [number, number];
  readonly granularity: Granularity;
}

/** v1 (`gptq`) stores zero - 1, v2 (`gptq_v2`) the zero itself. */
export type ZeroConvention = 'v1' | 'v2';

export const GPTQ_BITS: readonly number[] = [2, 3, 4, 8];

/**
 * The tensors of linear `name`, spec.md's table: qweight, qzeros, scales and g_idx. Throws LPQ_PACK
 * naming the module when the format cannot hold it.
 */
export function gptqTensors(name: string, module: GptqShape): TensorSpec[] {
  const problem = gptqProblem(module);
  if (problem) throw new LpqError('LPQ_PACK', `module '${name}' does not fit the GPTQ format: ${problem}`);
  const { bits } = module;
  const [n, k] = module.shape;
  const groups = groupCount(module.granularity, k);
  return [
    { name: `${name}.qweight`, dtype: 'I32', shape: [words(k, bits), n] },
    { name: `${name}.qzeros`, dtype: 'I32', shape: [groups, words(n, bits)] },
    { name: `${name}.scales`, dtype: 'F16', shape: [groups, n] },
    { name: `${name}.g_idx`, dtype: 'I32', shape: [k] },
  ];
}

/** Why a module cannot be stored, one clause; undefined when it can. */
export function gptqProblem({ bits, shape: [n, k], granularity }: GptqShape): string | undefined {
  if (!GPTQ_BITS.includes(bits)) return `it holds 2, 3, 4 or 8 bits, not ${bits}`;
  const groups = groupCount(granularity, k);
  if (!Number.isInteger(groups)) return `its groups do not divide K = ${k}`;
  // Loaders compute shapes with exact divisions, so words that end half full are not portable.
  const step = bits === 3 ? 32 : 32 / bits;
  if (k % step !== 0) return `K = ${k} is not a multiple of ${step}, which ${bits}-bit words need`;
  if (n % step !== 0) return `N = ${n} is not a multiple of ${step}, which ${bits}-bit words need`;
  return undefined;
}

/** The words that every qzeros repeats when all zero points are 2^(bits-1). */
export function symmetricZeroWords(bits: number, convention: ZeroConvention): Int32Array {
  const field = BigInt(2 ** (bits - 1) - (convention === 'v1' ? 1 : 0));
  let stream = 0n;
  for (let i = 0n; i < 32n; i++) stream |= field << (i * BigInt(bits));
  // 32 fields make `bits` words; where a field divides a word they are all the same.
  const count = bits === 3 ? 3 : 1;
  return Int32Array.from({ length: count }, (_, i) => Number(BigInt.asIntN(32, stream >> BigInt(32 * i))));
}

/**
 * Which convention symmetric zero words follow, whatever the config says: published files exist that say v1 and hold
 * v2. Undefined when the words are not symmetric ones.
 */
export function detectZeroConvention(qzeros: Int32Array, bits: number): ZeroConvention | undefined {
  for (const convention of ['v1', 'v2'] as const) {
    const expected = symmetricZeroWords(bits, convention);
    if (qzeros.length > 0 && qzeros.every((word, i) => word === expected[i % expected.length])) return convention;
  }
  return undefined;
}

/** Words that hold `count` fields of `bits`: ceil(count * bits / 32). */
export function words(count: number, bits: number): number {
  return Math.ceil((count * bits) / 32);
}
