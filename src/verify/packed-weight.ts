import type { PackedModule } from '../../formats/artifact/schema.js';
import type { Tensor } from '../../native/binding.js';
import { quantType, typeParams } from '../core/quant-type.js';
import type { PackedWeight } from '../model/source.js';
import { tileCodes } from './tile-layouts.js';

/**
 * The tensors of a module as the kernel of its layout takes them, through `load` (a suffix of the module's name); undefined
 * where lpq has no kernel. `dynamic`: the target's activations are codes too, and the device multiplies these. Without kernels are parts of
 * ranks, turbomind_sm70, tilus in another order of columns, and layouts of other tools.
 */
export function packedWeight(
  name: string,
  module: PackedModule,
  load: (suffix: string) => Tensor,
  dynamic = false,
): PackedWeight | undefined {
  const has = (suffix: string): boolean => Object.hasOwn(module.tensors, `${name}.${suffix}`);
  if (module.ranks) return undefined;
  const common = {
    shape: module.shape,
    type: typeParams(quantType(module.type)),
    groupLength: module.granularity.kind === 'group' ? module.granularity.size : 0,
  };
  switch (module.layout) {
    case 'tilus':
      if (has('permutation')) return undefined;
      return {
        ...common,
        layout: 'tilus',
        zero: module.zeros.kind === 'const' ? module.zeros.value : 0,
        weights: load('packed'),
        scales: load('scales'),
        ...(has('zeros') && { zeros: load('zeros') }),
      };
    case 'marlin':
      return {
        ...common,
        layout: 'marlin',
        weights: load('B'),
        scales: load('s'),
        ...(has('zp') && { zeros: load('zp') }),
        ...(has('permutation') && { permutation: load('permutation') }),
      };
    case 'sparse_marlin':
      return {
        ...common,
        layout: 'sparse_marlin',
        weights: load('B'),
        metadata: load('meta'),
        scales: load('s'),
      };
    case 'turbomind': {
      const { form } = tileCodes(name, module);
      return {
        ...common,
        layout: 'turbomind',
        experts: form === 'turbomind_b_experts',
        weights: load('packed'),
        scales: load(has('scales_zeros') ? 'scales_zeros' : 'scales'),
      };
    }
    case 'comet': {
      if (!dynamic) return undefined;
      const permuted = has('permutation') && { permutation: load('permutation') };
      return {
        ...common,
        layout: 'comet',
        weights: load('packed'),
        scales: load('scales'),
        bits: load('bits'),
        clip: load('clip'),
        blocks: load('blocks'),
        ...permuted,
        eights: module.activations!.bits.filter((bits) => bits === 8).length,
      };
    }
    case 'int-quantized':
    case 'float-quantized':
      // Bytes with one scale a row; copies of the bulk engine want rows of whole sixteens.
      if (!dynamic || module.granularity.kind !== 'channel' || module.scales.block[0] !== 1) return undefined;
      if (module.shape[1] % 16 !== 0) return undefined;
      return { ...common, layout: 'w8a8', weights: load('weight'), scales: load('weight_scale') };
    default:
      return undefined;
  }
}

/** Whether what modules of the target read becomes codes: one scale a token, or W4Ax. */
export function quantizesActivations(target: string): boolean {
  return target === 'compressed-tensors-w8a8' || target === 'comet';
}
