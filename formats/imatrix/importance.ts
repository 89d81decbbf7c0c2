/** The importance of the columns of a model's weights: squares of the inputs of its linears, summed over a text (llama.cpp's imatrix). */
export interface Importance {
  /** By the name of the tensor in GGUF; the experts of a block are the matrices of one tensor. */
  readonly entries: ReadonlyMap<string, ImportanceEntry>;
  /** The number of chunks of the text, and the tokens of each. */
  readonly chunks: number;
  readonly chunkSize: number;
  /** The names of the texts. */
  readonly datasets: readonly string[];
}

export interface ImportanceEntry {
  /** Sums of squares [matrices, K]. */
  readonly sums: Float32Array;
  /** The number of tokens in the sums: one for each matrix, or one for all. */
  readonly counts: Float32Array;
}

/** Mean squares [K] of one matrix of an entry; undefined if it saw no token, or if K does not fit. */
export function meanSquares({ sums, counts }: ImportanceEntry, k: number, matrix = 0): Float64Array | undefined {
  const count = counts.length === 1 ? counts[0] : counts[matrix];
  if (count === undefined || !(count > 0) || sums.length % k !== 0 || (matrix + 1) * k > sums.length) return undefined;
  return Float64Array.from(sums.subarray(matrix * k, (matrix + 1) * k), (sum) => sum / count);
}
