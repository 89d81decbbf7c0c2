import type { PackedModule } from '../../formats/artifact/schema.js';
import { fromNativeDtype } from '../../formats/safetensors/dtypes.js';
import type { HashedFacts } from '../../formats/safetensors/hash.js';
import type { TensorReader } from '../../formats/safetensors/read.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { layoutOf } from './layouts/index.js';
import type { Wrong } from './native.js';

export type DecodedPart = 'codes' | 'scales' | 'zeros' | 'global_scale' | 'g_idx' | 'permutation' | 'mask' | 'weight';

/** What the hash of a decoded part covers beside its values: the tensor that it was in the quantized checkpoint. */
export function canonicalFacts(module: string, part: DecodedPart, tensor: Tensor): HashedFacts {
  // E8M0 is stored as U8.
  const dtype = tensor.dtype === 'f8_e8m0' ? 'U8' : fromNativeDtype(tensor.dtype);
  return { name: `${module}.${part}`, dtype, shape: tensor.shape };
}

/** A value in the packed bytes that is no weight's and not what the layout says. */
export interface Problem {
  readonly tensor: string;
  readonly wrong: Wrong;
  readonly what: string;
}

/** A module in canonical form; of a dense one only `weight` is left. Dispose with disposeDecoded(). */
export interface Decoded {
  readonly parts: Map<DecodedPart, Tensor>;
  /** Group of each input feature, for dequantizing, where the layout stores it; parts has it only if canonical has. */
  group?: Tensor;
  readonly problems: Problem[];
}

export function disposeDecoded(decoded: Decoded): void {
  for (const tensor of new Set([...decoded.parts.values(), decoded.group])) tensor?.dispose();
}

/** Reads a module's tensors, which have the shapes of expectation(), back into canonical form. */
export async function decodeModule(
  rt: NativeRuntime,
  weights: TensorReader,
  name: string,
  module: PackedModule,
): Promise<Decoded> {
  const decoded: Decoded = { parts: new Map(), problems: [] };
  await layoutOf(module.layout)!.decode(rt, weights, name, module, decoded);
  return decoded;
}
