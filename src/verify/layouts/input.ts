import { typed } from '../../../native/binding.js';
import { firstWrong, problem } from '../decode-scales.js';
import type { VerifiedLayout } from '../layout.js';

/** A layout that also stores what the engine rounds activations with, made of the largest magnitude that lpq.json states: one F32. */
export function withInput(
  layout: VerifiedLayout,
  suffix: string,
  of: (most: number) => number,
  shape: readonly number[] = [1],
): VerifiedLayout {
  const { kernel: _, ...rest } = layout; // lpq has no kernel for activations with one scale
  return {
    ...rest,
    input: true,
    tensors: (module) => [...layout.tensors(module), { suffix, dtypes: ['F32'], shape }],

    async decode(rt, weights, name, module, decoded) {
      await layout.decode(rt, weights, name, module, decoded);
      const tensor = `${name}.${suffix}`;
      const stored = weights.tensor(tensor);
      const wrong = firstWrong(typed<Float32Array>(stored), 1, () => Math.fround(of(module.inputMost as number)));
      problem(decoded, tensor, 'it is not the scale of the input that lpq.json states', wrong);
      stored.dispose();
    },
  };
}
