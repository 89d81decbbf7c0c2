import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { Calibration } from '../calibrate/text.js';
import type { Feed, LinearRef, ModelGraph } from '../model/program.js';
import type { WeightSource } from '../model/source.js';
import { disposeWeights, loadWeights } from '../model/weights.js';
import { sweepModel, walkOf } from './collect.js';
import { bitsPerWeight } from './grid.js';
import { disposeModule } from './result.js';
import { roundWeight } from './round.js';
import { checkGroupSize, checkSparsity, type QuantScheme } from './scheme.js';
import { dequantizeResult, errorSums } from './stored.js';

/** Linears that must have one type: engines fuse what reads one input, and the experts of a block. */
export interface Unit {
  readonly block: number | null;
  readonly linears: readonly LinearRef[];
}

/** How a scheme does on a unit: its error, and its bits. */
export interface Measured {
  readonly unit: Unit;
  /** By scheme, in the order given. */
  readonly costs: readonly number[];
  readonly errors: readonly number[];
}

/** Units of the modules named, in the order of the model. */
export function unitsOf(graph: ModelGraph, names: ReadonlySet<string>): Unit[] {
  const units: Unit[] = [];
  for (const block of walkOf(graph)) {
    const index = block.index === graph.blocks.length ? null : block.index;
    for (const { feeds } of block.stages) {
      const experts = feeds.filter(({ linears }) => linears[0]?.expert !== undefined).flatMap(({ linears }) => linears);
      const others = feeds.filter(({ linears }) => linears[0]?.expert === undefined).map(({ linears }) => linears);
      for (const linears of [...others, experts]) {
        const wanted = linears.filter(({ name }) => names.has(name));
        if (wanted.length > 0) units.push({ block: index, linears: wanted });
      }
    }
  }
  return units;
}

/**
 * Rounds every unit to each of `schemes` and measures the relative squared error: of the outputs, tr(D H Dᵀ) / tr(W H Wᵀ),
 * with H from `calibration` through the unquantized model; of the weights without. A unit's error is the sum over its
 * linears, an expert's weighed by the share of tokens that reached it. Solvers lower all of these errors by about the same
 * factor, so that they rank units as rounding does.
 */
export async function measureUnits(
  rts: readonly NativeRuntime[],
  source: WeightSource,
  graph: ModelGraph,
  units: readonly Unit[],
  schemes: readonly QuantScheme[],
  calibration: Pick<Calibration, 'sequences'> | undefined,
  onUnit: (done: number, name: string) => void = () => {},
): Promise<Measured[]> {
  const rt = rts[0] as NativeRuntime;
  const errors = new Map(units.map((unit) => [unit, schemes.map(() => 0)]));
  const owner = new Map(units.flatMap((unit) => unit.linears.map(({ name }) => [name, unit] as const)));
  const tokens = calibration?.sequences.reduce((sum, { length }) => sum + length, 0) ?? 0;
  let done = 0;
  const measure = async (feed: Pick<Feed, 'linears'>, h: Tensor | undefined, rows: number): Promise<void> => {
    const linears = feed.linears.filter(({ name }) => owner.has(name));
    if (linears.length === 0) return;
    const names = linears.map(({ name }) => `${name}.weight`);
    const weights = await loadWeights(rt, source, names, graph.transposed);
    try {
      for (const linear of linears) {
        const weight = weights.get(`${linear.name}.weight`) as Tensor;
        const sums = errors.get(owner.get(linear.name) as Unit) as number[];
        const share = linear.expert === undefined || tokens === 0 ? 1 : rows / tokens;
        for (const [i, scheme] of schemes.entries()) {
          const error = rows === 0 ? 0 : await relativeError(rt, linear, weight, scheme, h);
          sums[i] = (sums[i] as number) + share * error;
        }
        onUnit(++done, linear.name);
      }
    } finally {
      disposeWeights(weights);
    }
  };
  if (calibration)
    await sweepModel(rts, calibration, source, graph, walkOf(graph), {}, (feed, { h, tokens: rows }) =>
      measure(feed, h, rows),
    );
  else for (const unit of units) await measure(unit, undefined, 1);
  return units.map((unit) => ({
    unit,
    errors: errors.get(unit) as number[],
    costs: unitCosts(unit, schemes),
  }));
}

/** The bits of a unit's weights in each scheme. */
export function unitCosts({ linears }: Unit, schemes: readonly QuantScheme[]): number[] {
  return schemes.map((scheme) => linears.reduce((sum, { n, k }) => sum + bitsPerWeight(scheme, n, k) * n * k, 0));
}

async function relativeError(
  rt: NativeRuntime,
  { name, k }: LinearRef,
  weight: Tensor,
  scheme: QuantScheme,
  h: Tensor | undefined,
): Promise<number> {
  checkGroupSize(scheme, name, k);
  checkSparsity(scheme, name, k);
  const rounded = await roundWeight(rt, weight, scheme, name);
  try {
    const { squaredError, squaredNorm } = rounded.stats;
    if (!h) return squaredNorm > 0 ? squaredError / squaredNorm : 0;
    const dequantized = dequantizeResult(rt, rounded);
    const { error, norm } = await errorSums(rt, weight, dequantized, h).finally(() => dequantized.dispose());
    return norm > 0 ? error / norm : 0;
  } finally {
    disposeModule(rounded);
  }
}
