/** A mean, and its standard error: the sample's deviation over the root of the count; null for a single value. */
export interface Estimate {
  readonly mean: number;
  readonly error: number | null;
}

export function estimate(values: readonly number[]): Estimate {
  const count = values.length;
  const mean = values.reduce((sum, value) => sum + value, 0) / count;
  if (count < 2) return { mean, error: null };
  const spread = values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (count - 1);
  return { mean, error: Math.sqrt(spread / count) };
}
