import type { NormMaker, NormPlan } from './plan.js';
import type { ExpertsTable } from './tables/experts.js';

/** Experts and the MLP beside them as two branches with norms of their own; the norm of the mixture is the MLP's. */
export interface ExpertsApartPlan {
  /** Before the experts. */
  readonly norm: NormPlan;
  /** Of what the experts make together, of what the MLP makes, and of the sum of both. */
  readonly postNorm: NormPlan;
  readonly sharedPostNorm: NormPlan;
  readonly sumNorm: NormPlan;
  /** Of the router's input, whose logits are divided by the square root of its size. */
  readonly routerNorm: NormPlan;
  /** Full name of a tensor [E] that multiplies the weights of chosen experts. */
  readonly expertScale: string;
}

/** Undefined where all read one input. `sum`: the norm behind the sum, by its name in the block. */
export function expertsApart(
  { apart }: ExpertsTable,
  prefix: string,
  norm: NormMaker,
  sum: string | undefined,
): ExpertsApartPlan | undefined {
  if (!apart) return undefined;
  return {
    norm: norm(prefix + apart.norm),
    postNorm: norm(prefix + apart.postNorm),
    sharedPostNorm: norm(prefix + apart.sharedPostNorm),
    sumNorm: norm(`${prefix}${sum}`),
    routerNorm: { ...norm(''), weight: prefix + apart.routerScale },
    expertScale: prefix + apart.expertScale,
  };
}
