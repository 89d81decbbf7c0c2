import type { PackedModule } from '../../../formats/artifact/schema.js';
import type { Tensor } from '../../../native/binding.js';
import type { PackedWeight } from '../../model/kernels/kernel.js';
import type { VerifiedLayout } from '../layout.js';
import { awq } from './awq.js';
import { comet } from './comet.js';
import { cometTwoLevel } from './comet-two-level.js';
import { mxfp4, nvfp4, nvfp4Input } from './fp4.js';
import { gptq, gptqV2 } from './gptq.js';
import { marlin } from './marlin.js';
import { modelOptFp8, modelOptNvfp4, modelOptNvfp4Input } from './modelopt.js';
import { mxfp8 } from './mxfp8.js';
import { packQuantized } from './pack-quantized.js';
import { carried, dense } from './plain.js';
import { sparseMarlin } from './sparse-marlin.js';
import { tilus } from './tilus.js';
import { turbomind, turbomindSm70 } from './turbomind.js';
import { w4a8 } from './w4a8.js';
import { floatQuantized, floatStatic, intQuantized } from './whole-bytes.js';

/** Every layout of packed modules. */
export const LAYOUTS: readonly VerifiedLayout[] = [
  marlin,
  sparseMarlin,
  turbomind,
  turbomindSm70,
  tilus,
  comet,
  cometTwoLevel,
  w4a8,
  gptq,
  gptqV2,
  packQuantized,
  awq,
  intQuantized,
  floatQuantized,
  floatStatic,
  nvfp4,
  nvfp4Input,
  mxfp4,
  mxfp8,
  modelOptFp8,
  modelOptNvfp4,
  modelOptNvfp4Input,
];

const BY_NAME = new Map([...LAYOUTS, dense, carried].map((layout) => [layout.name, layout]));

/** A layout, or the form in which a module is left, by its name in an artifact. */
export function layoutOf(name: string): VerifiedLayout | undefined {
  return BY_NAME.get(name);
}

/** Whether modules of a layout of that name are packed, and not left as they were. */
export function isPacked(name: string): boolean {
  return LAYOUTS.some((layout) => layout.name === name);
}

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
