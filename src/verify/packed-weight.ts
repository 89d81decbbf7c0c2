import type { PackedModule } from '../../formats/artifact/schema.js';
import type { Tensor } from '../../native/binding.js';
import type { PackedWeight } from '../model/kernels/kernel.js';
import { layoutOf } from './layouts/index.js';

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
  return layoutOf(module.layout)?.kernel?.binds.bind({ name, module, has, load, codes });
}
