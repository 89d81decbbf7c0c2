import assert from 'node:assert/strict';
import { type Tensor, typed } from '../../native/binding.js';

/**
 * Compares gradients with central differences of sum(dy * y) in double precision, y by plain loops. With steps of 1e-4 of values about 1
 * those err by some 1e-8 of the largest element; fp32 sums and states of a few tokens by some 1e-6.
 */
export function expectGradients(
  given: Readonly<Record<string, Float32Array>>,
  got: Readonly<Record<string, Tensor>>,
  dy: Float32Array,
  forward: (at: Record<string, Float64Array>) => Float64Array,
): void {
  const at = Object.fromEntries(Object.entries(given).map(([name, values]) => [name, Float64Array.from(values)]));
  const loss = () => forward(at).reduce((sum, y, i) => sum + y * dy[i]!, 0);
  for (const [name, gradient] of Object.entries(got)) {
    const x = at[name]!;
    const want = Array.from(x, (value, i) => {
      const [above, below] = [1e-4, -1e-4].map((step) => {
        x[i] = value + step;
        return loss();
      }) as [number, number];
      x[i] = value;
      return (above - below) / 2e-4;
    });
    const most = Math.max(...want.map(Math.abs));
    assert.ok(most > 0, name);
    for (const [i, value] of want.entries())
      assert.ok(
        Math.abs(typed(gradient)[i]! - value) <= 2e-5 * most,
        `${name} ${i}: ${typed(gradient)[i]}, not ${value}`,
      );
  }
}
