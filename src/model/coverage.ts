import { type NativeRuntime, readTyped, type Tensor, uploadTyped } from '../../native/binding.js';
import { ops } from '../../native/ops.js';

/** What a router made of a batch: scores f32 [T,E], and the rows of each expert as ops.groupByExpert leaves them. */
export interface Routed {
  readonly scores: Tensor;
  readonly rows: Tensor;
  readonly offsets: Tensor;
  readonly perToken: number;
}

/**
 * The tokens that each expert's statistics are to be of, so that every expert sees at least `share` of a batch: those that are sent to it
 * and, where they are fewer, those that came nearest to it (whose score of this expert misses their k-th best by least; of equals
 * the first). Ascending; undefined where those sent are enough.
 */
export async function coveringTokens(
  rt: NativeRuntime,
  routed: Routed,
  share: number,
): Promise<(Int32Array | undefined)[]> {
  const { scores, rows, offsets, perToken } = routed;
  const [tokens, experts] = scores.shape as [number, number];
  const wanted = Math.min(tokens, Math.ceil(tokens * share));
  const bounds = await readTyped<Int32Array>(rt, offsets);
  const counts = Array.from({ length: experts }, (_, e) => (bounds[e + 1] as number) - (bounds[e] as number));
  if (counts.every((count) => count >= wanted)) return counts.map(() => undefined);
  const order = await readTyped<Int32Array>(rt, rows);
  const values = await readTyped<Float32Array>(rt, scores);
  const best = bestOfEach(values, tokens, experts, perToken);
  return counts.map((count, e) => {
    if (count >= wanted) return undefined;
    const sent = Int32Array.from({ length: count }, (_, i) =>
      Math.floor((order[(bounds[e] as number) + i] as number) / perToken),
    );
    const taken = new Set(sent);
    const margin = (t: number) => (values[t * experts + e] as number) - (best[t] as number);
    const others = Array.from({ length: tokens }, (_, t) => t)
      .filter((t) => !taken.has(t))
      .sort((a, b) => margin(b) - margin(a) || a - b);
    return Int32Array.from([...sent, ...others.slice(0, wanted - count)]).sort();
  });
}

/** The k-th best score of each token. */
function bestOfEach(values: Float32Array, tokens: number, experts: number, k: number): Float64Array {
  return Float64Array.from({ length: tokens }, (_, t) => {
    const row = values
      .subarray(t * experts, (t + 1) * experts)
      .slice()
      .sort();
    return row[experts - k] as number;
  });
}

/** x [T,K] -> [tokens.length, K]. */
export function rowsOf(rt: NativeRuntime, x: Tensor, tokens: Int32Array): Tensor {
  const indices = uploadTyped(rt, 'i32', [tokens.length], tokens);
  const y = rt.allocate(x.dtype, [tokens.length, x.shape[1] as number]);
  ops.gatherRows(rt, x, indices, y);
  indices.dispose();
  return y;
}
