import { allocate, type Tensor, typed } from '../../native/binding.js';
import type { ScaleSite } from '../model/scale-sites.js';
import type { ObservedFeed } from './observe.js';
import type { Reading } from './search.js';

/**
 * The outlier criterion: a channel whose balance lies 2^3 times above the median's. Others keep their size, for orders
 * concentrate them better than factors level them (docs/internals/fmpq.md has the measurement).
 */
const OUTLIER_POWER = 3;
/** Powers beyond this would be no balance but damage: weights of f16 end at 2^-24. */
const MOST_POWER = 12;

/**
 * Powers of two that bring outlier channels of a site down to the others, as SmoothQuant (arXiv:2211.10438, section 4) divides
 * them: by most^alpha / weight^(1 - alpha), most the largest magnitude of the channel and weight the root of its importance. Rounded
 * before the median is taken off, so that a power of two which the model's weights carry in a channel already (an outlier)
 * comes out again. Undefined where there is no outlier.
 */
export function balance(readings: readonly Reading[], size: number, alpha: number): Int32Array | undefined {
  const most = new Float64Array(size);
  const weight = new Float64Array(size);
  for (const { feed, start } of readings) {
    for (let c = 0; c < size; c++) {
      most[c] = Math.max(most[c] as number, feed.most[start + c] as number);
      weight[c] = (weight[c] as number) + (feed.importance[start + c] as number);
    }
  }
  const wishes = Float64Array.from(most, (peak, c) =>
    Math.round(alpha * Math.log2(peak) - ((1 - alpha) / 2) * Math.log2(weight[c] as number)),
  );
  const known = [...wishes].filter(Number.isFinite).sort((a, b) => a - b);
  const middle = known[known.length >> 1];
  if (middle === undefined) return undefined;
  const powers = Int32Array.from(wishes, (wish) =>
    Number.isFinite(wish) && wish - middle >= OUTLIER_POWER ? Math.max(-MOST_POWER, middle - wish) : 0,
  );
  return powers.some((power) => power !== 0) ? powers : undefined;
}

/** What the feeds look like once channels are multiplied. A feed that changes has new tensors, which the caller disposes of. */
export function scaledFeeds(
  feeds: readonly ObservedFeed[],
  sites: readonly ScaleSite[],
  powers: ReadonlyMap<string, Int32Array>,
): ObservedFeed[] {
  const byName = new Map<string, Float64Array>();
  for (const { id, readers } of sites) {
    const by = powers.get(id);
    if (!by) continue;
    for (const { linears, starts } of readers)
      for (const name of linears) {
        const feed = feeds.find((each) => each.linears.some((linear) => linear.name === name));
        if (!feed) continue;
        const factors = byName.get(name) ?? new Float64Array(feed.k).fill(1);
        for (const start of starts) for (const [j, power] of by.entries()) factors[start + j] = 2 ** power;
        byName.set(name, factors);
      }
  }
  return feeds.map((feed) => {
    const factors = feed.linears.map(({ name }) => byName.get(name)).find((found) => found !== undefined);
    if (!factors) return feed;
    return {
      ...feed,
      rows: scaledColumns(feed.rows, factors),
      importance: feed.importance.map((value, c) => value / (factors[c] as number) ** 2),
      most: feed.most.map((value, c) => value * (factors[c] as number)),
      moments: feed.moments.map((value, c) => value * (factors[c] as number) ** 2),
    };
  });
}

/** A matrix f32 on the host, its columns times factors. */
function scaledColumns(matrix: Tensor, factors: Float64Array): Tensor {
  const made = allocate('f32', matrix.shape);
  const [from, to] = [typed(matrix), typed(made)];
  const k = factors.length;
  for (let row = 0; row < from.length; row += k)
    for (let c = 0; c < k; c++) to[row + c] = (from[row + c] as number) * (factors[c] as number);
  return made;
}
