/** How much the columns of a model's weights matter: squares of what its linears read, summed over a text (llama.cpp's imatrix). */
export interface Importance {
  /** By the name of the tensor in GGUF; experts of a block are the matrices of one. */
  readonly entries: ReadonlyMap<string, ImportanceEntry>;
  /** Runs of so many tokens that were read, and how many. */
  readonly chunks: number;
  readonly chunkSize: number;
  /** What was read. */
  readonly datasets: readonly string[];
}

export interface ImportanceEntry {
  /** Sums of squares [matrices, K]. */
  readonly sums: Float32Array;
  /** Tokens that they are of: one number for each matrix, or one for all. */
  readonly counts: Float32Array;
}

/** Mean squares [K] of one matrix of an entry; undefined where no token was seen, or K does not fit. */
export function meanSquares({ sums, counts }: ImportanceEntry, k: number, matrix = 0): Float64Array | undefined {
  const count = counts.length === 1 ? counts[0] : counts[matrix];
  if (count === undefined || !(count > 0) || sums.length % k !== 0 || (matrix + 1) * k > sums.length) return undefined;
  return Float64Array.from(sums.subarray(matrix * k, (matrix + 1) * k), (sum) => sum / count);
}
