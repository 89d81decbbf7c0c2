import type { Quality } from '../../formats/canonical/schema.js';
import type { Measures } from '../../formats/report/schema.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
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
  /** [N, K/groupSize] of scheme.scaleDtype. */
  readonly scales: Tensor;
  /** Asymmetric schemes only: true zeros, u8 or i16 as zerosOf(scheme) says, shape of the scales. */
  readonly zeros?: Tensor;
  /** [K]: column j of the codes multiplies input feature permutation[j]. */
  readonly permutation?: Int32Array;
  /** 2:4 schemes only: U8 [N, ceil(K/8)], bit k of a row is 1 where the weight stays. Codes of the others stand for 0. */
  readonly mask?: Tensor;
  /** An f32 value; only when scheme.globalScale. */
  readonly globalScale?: number;
  readonly quality: Quality;
  /** What reports tell of it beside; the checkpoint's bytes do not have it. */
  readonly measures?: Measures;
}

/** The result in the CPU's memory, once it is computed; both must be disposed of. */
export async function downloadModule(rt: NativeRuntime, module: QuantizedModule): Promise<QuantizedModule> {
  const codes = await rt.download(module.codes);
  const scales = await rt.download(module.scales);
  return {
    ...module,
    codes,
    scales,
    ...(module.zeros && { zeros: await rt.download(module.zeros) }),
    ...(module.mask && { mask: await rt.download(module.mask) }),
  };
}

/** Lets go of a result's tensors. */
export function disposeModule(module: Pick<QuantizedModule, 'codes' | 'scales' | 'zeros' | 'mask'>): void {
  module.codes.dispose();
  module.scales.dispose();
  module.zeros?.dispose();
  module.mask?.dispose();
}
