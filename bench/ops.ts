import type { NativeRuntime, Tensor } from '../native/binding.js';

/** How a random matrix is drawn: column[k] * (mean + std * row[n] * z). */
export interface WeightDraw {
  /** Integers below 2^53: of the deviates and the rows, and of the columns. */
  readonly seed: number;
  readonly columnSeed: number;
  readonly mean?: number;
  readonly std: number;
  /** Standard deviations of the logarithms of the rows' and the columns' scales. */
  readonly rowSpread: number;
  readonly columnSpread: number;
  /** Share of the columns that are multiplied by outlierGain. */
  readonly outlierShare: number;
  readonly outlierGain: number;
}

/** How random bytes are drawn: of [least, most]. */
export interface ByteDraw {
  readonly seed: number;
  readonly least: number;
  readonly most: number;
}

/** Operations that only benchmarks use (native/cpu/synth; copy also native/cuda/layout). */
export const benchOps = {
  /** Random weights f32|f16|bf16 [N,K] or [K], rows firstRow and following of a larger matrix; any cut gives the same bytes. */
  synthWeights: (rt: NativeRuntime, weights: Tensor, draw: WeightDraw, firstRow = 0) =>
    rt.enqueue('synth_weights', [], [weights], { ...draw, firstRow }),

  /** Random bytes u8 [C], of a longer run from byte `first` on, a multiple of 8; any cut gives the same bytes. */
  synthBytes: (rt: NativeRuntime, bytes: Tensor, draw: ByteDraw, first = 0) =>
    rt.enqueue('synth_bytes', [], [bytes], { ...draw, first }),

  /** to = from, byte by byte; any dtypes and shapes of one size. */
  copy: (rt: NativeRuntime, from: Tensor, to: Tensor) => rt.enqueue('copy', [from], [to]),
} as const;
