import path from 'node:path';
import type { GgufValue } from '../../../formats/gguf/metadata.js';
import { text } from '../../../formats/gguf/metadata.js';
import type { GgufName } from '../../../formats/gguf/names.js';
import { type Importance, meanSquares } from '../../../formats/imatrix/importance.js';
import { readImportance } from '../../../formats/imatrix/read.js';
import { fromTyped, type Tensor } from '../../../native/binding.js';
import { LpqError } from '../../core/error.js';

/** The least weight of a column, relative to the mean of all, so that no column is ignored. */
const LEAST = 2 ** -10;

/** The weights of squared errors of columns in a search, and the metadata that the file states. */
export interface Weighting {
  /** F32 [K] for a module's tensor; the caller disposes of it. Throws LPQ_IMATRIX. */
  of(place: GgufName, module: string, k: number): Tensor;
  readonly metadata: readonly (readonly [string, GgufValue])[];
}

/** Throws LPQ_IMATRIX, LPQ_STATISTICS. */
export async function openWeighting(file: string): Promise<Weighting> {
  const importance = await readImportance(file);
  const count = (value: number): GgufValue => ({ type: 'i32', value });
  return {
    of: ({ name, expert }, module, k) =>
      fromTyped('f32', [k], columnWeights(importance, file, name, expert, module, k)),
    // As llama-quantize writes them.
    metadata: [
      ['quantize.imatrix.file', text(path.basename(path.resolve(file)))],
      ['quantize.imatrix.entries_count', count(importance.entries.size)],
      ['quantize.imatrix.chunks_count', count(importance.chunks)],
    ],
  };
}

function columnWeights(
  { entries }: Importance,
  file: string,
  tensor: string,
  expert: number | undefined,
  module: string,
  k: number,
): Float32Array<ArrayBuffer> {
  const entry = entries.get(tensor);
  if (!entry || entry.sums.length % k !== 0)
    throw new LpqError(
      'LPQ_IMATRIX',
      `${file} ${entry ? 'has sums of another size for' : 'has no entry for'} '${module}'`,
      {
        got: entry ? `${entry.sums.length} sums` : `no '${tensor}'`,
        expected: `${k} sums for each matrix of '${tensor}'`,
        hint: 'It belongs to another model, or was made from too few tokens.',
      },
    );
  const means = meanSquares(entry, k, expert ?? 0);
  const mean = means ? means.reduce((a, b) => a + b, 0) / k : 0;
  // An expert without tokens, and inputs that are zero, weigh all columns alike.
  return Float32Array.from({ length: k }, (_, i) => (mean > 0 ? Math.max((means![i] as number) / mean, LEAST) : 1));
}
