/** x with P(X <= x) = share of a standard normal X, for 0 < share < 1, to within 1e-9: a bisection over its distribution function. */
export function normalQuantile(share: number): number {
  let [low, high] = [-8, 8];
  for (let i = 0; i < 60; i++) {
    const middle = (low + high) / 2;
    if (distribution(middle) < share) low = middle;
    else high = middle;
  }
  return (low + high) / 2;
}

/** 1/2 + φ(x) (x + x³/3 + x⁵/15 + ...), φ the density (Abramowitz and Stegun 26.2.11). */
function distribution(x: number): number {
  let [term, sum] = [x, x];
  for (let n = 3; n < 400; n += 2) {
    term *= (x * x) / n;
    sum += term;
  }
  return 0.5 + (sum * Math.exp((-x * x) / 2)) / Math.sqrt(2 * Math.PI);
}
