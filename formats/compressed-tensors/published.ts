import { addon, type Tensor, threadCount } from '../../native/binding.js';
import { LpqError } from '../../src/core/error.js';
import { readWeightSchemes } from './read-schemes.js';

/** Weights that share a scale in models that are published in INT4 (Kimi K2 Thinking, K2.5). */
export const INT4_GROUP = 32;

/**
 * What keeps settings of compressed-tensors from being those of a model that is published in INT4 and has no wider weights:
 * symmetric codes of 4 bits in groups of 32, in the order of their features. A key and its value; undefined where nothing does. Settings
 * that cannot be read are no such model's: the reader of modules says what is wrong with them.
 */
export function unpublishedInt4(where: string, settings: Readonly<Record<string, unknown>>): string | undefined {
  let schemes: ReturnType<typeof readWeightSchemes>['schemes'];
  try {
    ({ schemes } = readWeightSchemes(where, settings));
  } catch (error) {
    if (!(error instanceof LpqError)) throw error;
    return error.message;
  }
  if (schemes.length === 0) return 'no group with weights';
  for (const { group, format, bits, type, symmetric, strategy, groupSize, actorder } of schemes) {
    if (format !== 'pack-quantized') return `${group}: format ${format}`;
    if (type !== 'int' || bits !== 4) return `${group}: ${bits}-bit ${type}`;
    if (!symmetric) return `${group}: symmetric false`;
    if (strategy !== 'group' || groupSize !== INT4_GROUP)
      return `${group}: strategy ${strategy} of ${groupSize ?? 'rows'}`;
    if (actorder === 'group') return `${group}: actorder ${actorder}`;
  }
  return undefined;
}

/** W[n][k] = (code - 8) * scale of its group, one product rounded to f32: out [N*K]. Words hold eight codes, the first lowest. */
export function int4ToFloat(words: Int32Array, scales: Float32Array, out: Tensor): void {
  addon().decodeInt4(words, scales, INT4_GROUP, out, threadCount());
}
