import path from 'node:path';
import type { GgufValue } from '../../formats/gguf/metadata.js';
import { type Importance, meanSquares } from '../../formats/imatrix/importance.js';
import { fromTyped, type Tensor } from '../../native/binding.js';
import type { GgufContext } from './gguf-context.js';
import type { Entry } from './gguf-header.js';

/** The importance matrix that weighed a search, and its file. */
export interface GivenImportance {
  readonly file: string;
  readonly importance: Importance;
}

const KEYS = ['quantize.imatrix.file', 'quantize.imatrix.entries_count', 'quantize.imatrix.chunks_count'] as const;

/** Whether the file says that its search was weighed. */
export const isWeighed = ({ file }: Pick<GgufContext, 'file'>): boolean => KEYS.some((key) => file.metadata.has(key));

/** What the file must say of an importance matrix: what the given one is; without it whatever stands there. */
export function importanceEntries(context: GgufContext, given: GivenImportance | undefined): Entry[] {
  if (!given)
    return KEYS.flatMap((key): Entry[] => {
      const found = context.file.metadata.get(key);
      return found ? [[key, found]] : [];
    });
  const { file, importance } = given;
  const values: readonly GgufValue[] = [
    { type: 'string', value: path.basename(path.resolve(file)) },
    { type: 'i32', value: importance.entries.size },
    { type: 'i32', value: importance.chunks },
  ];
  return KEYS.map((key, i): Entry => [key, values[i] as GgufValue]);
}

/**
 * F64 [K]: the weight of each column's squares in a stored matrix (NAME, or NAME[expert]). Zeros if a search was weighed and the importance
 * matrix is not given, or lacks the tensor. Undefined: all columns weigh the same.
 */
export function columnWeights(
  context: GgufContext,
  given: GivenImportance | undefined,
  tensor: string,
  k: number,
): Tensor | undefined {
  if (!isWeighed(context)) return undefined;
  const [, name = tensor, expert = '0'] = /^(.*)\[(\d+)\]$/.exec(tensor) ?? /^(.*?)\+/.exec(tensor) ?? [];
  const entry = given?.importance.entries.get(name);
  if (!entry) return fromTyped('f64', [k], new Float64Array(k));
  const means = meanSquares(entry, k, Number(expert));
  const total = means?.reduce((a, b) => a + b, 0) ?? 0;
  // A thousandth of the mean is the least that a packer gives a column.
  const weights = Float64Array.from({ length: k }, (_, i) =>
    means && total > 0 ? Math.max(((means[i] as number) * k) / total, 1 / 1024) : 1,
  );
  return fromTyped('f64', [k], weights);
}
