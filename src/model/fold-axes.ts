import type { LinearPlan, NormPlan } from './plan.js';

/**
 * One axis of one tensor that lists the channels of a fold site: runs of `size` indices, one at each of `starts`, all of
 * which are permuted alike. Axis 0 is N of a linear's [N, K] (whichever way it is stored), rows of an embedding or a vector.
 */
export interface FoldAxis {
  readonly tensor: string;
  readonly axis: 0 | 1;
  readonly starts: readonly number[];
}

/** Where a feed of linears reads a site: its columns start .. start + size of each of `starts`. */
export interface FoldReader {
  /** Module paths. */
  readonly linears: readonly string[];
  readonly starts: readonly number[];
}

/**
 * A set of channels whose order means nothing: permuting every axis alike gives the same function. What makes it so:
 * residual: norms work channel by channel, and every linear and table that writes or reads the stream is among the axes;
 * value: attention weighs values row by row, so that the columns of v of one kv head may come in any order that o's columns
 * of the heads which share it follow; hidden: gates and activations work channel by channel; latent: as residual, of MLA's
 * compressed vectors.
 */
export interface FoldSite {
  readonly id: string;
  readonly kind: 'residual' | 'value' | 'hidden' | 'latent';
  readonly size: number;
  readonly axes: readonly FoldAxis[];
  readonly readers: readonly FoldReader[];
}

export const rowsOf = (linear: LinearPlan, starts: readonly number[] = [0]): FoldAxis[] => [
  { tensor: `${linear.name}.weight`, axis: 0, starts },
  ...(linear.bias ? [{ tensor: `${linear.name}.bias`, axis: 0 as const, starts }] : []),
];

export const columnsOf = (linear: LinearPlan, starts: readonly number[] = [0]): FoldAxis => ({
  tensor: `${linear.name}.weight`,
  axis: 1,
  starts,
});

export const normAxes = (norm: NormPlan | undefined): FoldAxis[] =>
  [norm?.weight, norm?.bias].flatMap((tensor) => (tensor === undefined ? [] : [{ tensor, axis: 0, starts: [0] }]));

export const reader = (linears: readonly LinearPlan[], starts: readonly number[] = [0]): FoldReader => ({
  linears: linears.map(({ name }) => name),
  starts,
});
