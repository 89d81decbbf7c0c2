/** Nibble i of a word holds column ORDER[i] of its eight (AutoAWQ's GEMM kernels read them in this order). */
export const AWQ_ORDER: readonly number[] = [0, 2, 4, 6, 1, 3, 5, 7];

/** Columns that share a word. */
export const AWQ_COLUMNS = 8;
