import { nearestEven, nearestHalf } from './floats.js';

/** The stored scale of a grid from `low` to `high`. */
export const stepOf = (low: number, high: number, top: number): number =>
  nearestHalf(Math.fround(Math.fround(high - low) / top));

/** The code of a number; of what lies beyond an end, that end's. */
export const codeOf = (x: number, low: number, step: number, top: number): number =>
  step > 0 ? nearestEven(Math.min(Math.max(Math.fround(Math.fround(x - low) / step), 0), top)) : 0;

/** The first ends that are tried: each end drawn in by none to four fortieths of the range. */
const SHARES = [0, 1, 2, 3, 4];
/** How often the line of least squares moves them. */
const ROUNDS = 2;

/** The ends of a group's grid by "Fitted ends" of formats/kv/spec.md, in the order of sums that it states. */
export function fittedEnds(x: Float64Array, low: number, high: number, top: number): [number, number] {
  const range = high - low;
  let best: [number, number] = [low, high];
  let least = Number.POSITIVE_INFINITY;
  for (const i of SHARES)
    for (const j of SHARES) {
      let [from, to] = [low + 0.025 * i * range, high - 0.025 * j * range];
      for (let round = 0; round <= ROUNDS; round++) {
        const [first, last] = [signedHalf(from), signedHalf(to)];
        if (!(last > first) || !Number.isFinite(first) || !Number.isFinite(last)) break;
        const { error, line } = trial(x, low, first, stepOf(first, last, top), top);
        if (error < least) [least, best] = [error, [first, last]];
        if (line === undefined) break;
        from = line.zero;
        to = from + top * line.slope;
      }
    }
  return best;
}

/** The squared error of a grid, and the line over its codes that has the least. */
function trial(x: Float64Array, low: number, first: number, step: number, top: number) {
  let [error, codes, squares, over, products] = [0, 0, 0, 0, 0];
  for (const value of x) {
    const code = codeOf(value, first, step, top);
    const off = code * step + first - value;
    error += off * off;
    codes += code;
    squares += code * code;
    over += value - low;
    products += code * (value - low);
  }
  const spread = x.length * squares - codes * codes;
  if (!(spread > 0)) return { error };
  const slope = (x.length * products - codes * over) / spread;
  return { error, line: { slope, zero: (over - slope * codes) / x.length + low } };
}

/** The nearest f16 of a number's nearest f32; beyond f16 infinity. */
function signedHalf(x: number): number {
  const single = Math.fround(x);
  const half = nearestHalf(Math.abs(single));
  return Math.sign(single) * (half >= 65_536 ? Number.POSITIVE_INFINITY : half);
}
