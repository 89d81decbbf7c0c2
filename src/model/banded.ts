import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import type { BlockWeights, LinearRef } from './program.js';

/**
 * On the CPU, puts the linears' weights of 16 bits (of any floats where products are in bf16, rounded to it) into the order in which
 * products of few rows read them (`weights.banded`); results are the same. Weights as they were stay: they are views of mapped files,
 * and others may read them. Joined weights, copies that nothing else reads, go. For weights that are used whole and not changed.
 */
export function bandLinears(
  rt: NativeRuntime,
  weights: BlockWeights,
  linears: Iterable<Pick<LinearRef, 'name'>>,
): void {
  if (rt.device !== 'cpu') return;
  for (const { name } of linears) {
    const key = `${name}.weight`;
    const weight = weights.get(key);
    if (weight?.shape.length !== 2 || weights.banded?.has(key)) continue;
    const stored = rt.products === 'bf16' ? inBf16(rt, weight) : weight;
    if (stored.dtype === 'f16' || stored.dtype === 'bf16') {
      weights.banded ??= new Map();
      weights.banded.set(key, banded(rt, stored));
    }
    if (stored !== weight) stored.dispose();
  }
  for (const { name } of weights.joined?.values() ?? []) {
    const key = `${name}.weight`;
    if (!weights.banded?.has(key)) continue;
    weights.get(key)?.dispose();
    weights.delete(key);
  }
}

function banded(rt: NativeRuntime, weight: Tensor): Tensor {
  const [n, k] = weight.shape as [number, number];
  const words = rt.allocate(weight.dtype, [Math.ceil(n / 32), Math.ceil(k / 2), 64]);
  ops.bandWeight(rt, weight, words);
  return words;
}

/** Products in bf16 round weights anyway. */
function inBf16(rt: NativeRuntime, weight: Tensor): Tensor {
  if (weight.dtype === 'bf16') return weight;
  const rounded = rt.allocate('bf16', weight.shape);
  ops.cast(rt, weight, rounded);
  return rounded;
}
