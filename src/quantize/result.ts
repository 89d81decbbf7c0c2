import type { Quality } from '../../formats/canonical/schema.js';
import type { Tensor } from '../../native/binding.js';
import type { QuantScheme } from './scheme.js';

/**
 * What every quantizer returns for a linear W [N, K], in the canonical form (formats/canonical/spec.md). The weight is
 * (decode(code) - zero) * scale * globalScale. The receiver disposes of the tensors.
 */
export interface QuantizedModule {
  readonly scheme: QuantScheme;
  /** [N, K]. */
  readonly shape: readonly [number, number];
  /** Bitstream U8 [N, ceil(K*bits/8)], element k of a row at bit k*bits. */
  readonly codes: Tensor;
  /** [N, K/groupLength] of scheme.scaleDtype. */
  readonly scales: Tensor;
  /** Asymmetric schemes only: true zeros, u8 or i16 as zerosOf(scheme) says, shape of the scales. */
  readonly zeros?: Tensor;
  /** An f32 value; only when scheme.globalScale. */
  readonly globalScale?: number;
  readonly quality: Quality;
}

/** Lets go of a result's tensors. */
export function disposeModule(module: Pick<QuantizedModule, 'codes' | 'scales' | 'zeros'>): void {
  module.codes.dispose();
  module.scales.dispose();
  module.zeros?.dispose();
}
