import type { PackedModule } from '../../formats/artifact/schema.js';
import type { Tensor } from '../../native/binding.js';
import { cometKernel } from '../model/kernels/comet.js';
import type { PackedKernel, PackedWeight } from '../model/kernels/kernel.js';
import { marlinKernel } from '../model/kernels/marlin.js';
import { sparseMarlinKernel } from '../model/kernels/sparse-marlin.js';
import { tilusKernel } from '../model/kernels/tilus.js';
import { turbomindKernel } from '../model/kernels/turbomind.js';
import { w8a8Kernel } from '../model/kernels/w8a8.js';

const KERNELS: Readonly<Record<string, PackedKernel>> = {
  tilus: tilusKernel,
  marlin: marlinKernel,
  sparse_marlin: sparseMarlinKernel,
  turbomind: turbomindKernel,
  comet: cometKernel,
  'int-quantized': w8a8Kernel,
  'float-quantized': w8a8Kernel,
};

/**
 * The tensors of a module as the kernel of its layout takes them, through `load` (a suffix of the module's name); undefined
 * where lpq has no kernel. `codes`: the target's activations are codes, too, and the device multiplies these. Without kernels are parts of
 * ranks, turbomind_sm70, tilus in another order of columns, and layouts of other tools.
 */
export function packedWeight(
  name: string,
  module: PackedModule,
  load: (suffix: string) => Tensor,
  codes = false,
): PackedWeight | undefined {
  if (module.ranks) return undefined;
  const has = (suffix: string): boolean => Object.hasOwn(module.tensors, `${name}.${suffix}`);
  return KERNELS[module.layout]?.bind({ name, module, has, load, codes });
}

/** Whether what modules of the target read becomes codes: one scale a token, or W4Ax. */
export function quantizesActivations(target: string): boolean {
  return target === 'compressed-tensors-w8a8' || target === 'comet';
}
