/** Scales [rows, columns] of a weight [n, k] in blocks, the last of either direction possibly cut. */
export interface ScaleGrid {
  readonly rows: number;
  readonly columns: number;
  readonly block: readonly [number, number];
  /** Input features that share a canonical scale: the largest length that divides both K and the block. */
  readonly length: number;
  /** Canonical scales in a row: K / length. */
  readonly runs: number;
}

/** What canonical `scales.stored` says of the blocks of a grid over [n, k]: nothing where no scale is repeated. */
export function storedBlock(grid: ScaleGrid, n: number): [number, number] | undefined {
  const { rows, columns, block, runs } = grid;
  return rows === n && columns === runs ? undefined : [block[0], block[1]];
}

/** The grid of blocks [blockN, blockK] over [n, k]. */
export function scaleGrid(n: number, k: number, block: readonly [number, number]): ScaleGrid {
  const [blockN, blockK] = block;
  let [length, rest] = [k, blockK];
  while (rest !== 0) [length, rest] = [rest, length % rest];
  return { rows: Math.ceil(n / blockN), columns: Math.ceil(k / blockK), block, length, runs: k / length };
}

/**
 * The scale of every row and run of `length` features: [N, K/length]. A block that K or N cuts has no place in the
 * canonical form, runs of rows have; the numbers stay what they are.
 */
export function expandScales<T extends Float32Array | Uint16Array | Int16Array | Uint8Array>(
  scales: T,
  { rows, columns, block: [blockN, blockK], length, runs }: ScaleGrid,
  n: number,
): T {
  if (rows === n && columns === runs) return scales;
  const out = new (scales.constructor as new (length: number) => T)(n * runs);
  const perBlock = blockK / length;
  for (let row = 0; row < n; row++) {
    const from = Math.floor(row / blockN) * columns;
    for (let run = 0; run < runs; run++) out[row * runs + run] = scales[from + Math.floor(run / perBlock)] as number;
  }
  return out;
}
