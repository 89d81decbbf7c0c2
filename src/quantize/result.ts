import type { Tensor } from '../../native/binding.js';
import type { QuantScheme } from './scheme.js';

/** A quantized weight as the canonical checkpoint stores it. The receiver disposes of the tensors. */
export interface QuantizedModule {
  readonly scheme: QuantScheme;
  /** [N, K]. */
  readonly shape: readonly [number, number];
  /** U8 [N, ceil(K*bits/8)]. */
  readonly codes: Tensor;
  /** [N, G] in the scheme's scale dtype. */
  readonly scales: Tensor;
  /** [N, G] u8, where the scheme has zeros of its own. */
  readonly zeros?: Tensor;
  readonly globalScale?: number;
  /** Fraction of mean(diag H) that was added; null without a Hessian. */
  readonly damp: number | null;
  readonly seconds: number;
  /** Sentences about what did not go as usual. */
  readonly notes: readonly string[];
}
