import type { CanonicalModule } from '../../formats/canonical/schema.js';
import type { CompressedScheme } from '../../formats/compressed-tensors/schemes.js';
import { type NoForm, noForm } from './integer-form.js';
import type { PackLayout } from './layout.js';
import type { ReaderLimit } from './reader-limits.js';

/** A storage form of compressed-tensors. */
export interface CompressedLayout extends PackLayout {
  /** What config.json says of a module that fits. */
  scheme(module: CanonicalModule): CompressedScheme;
  /** Of modules in this form. */
  readonly limits?: readonly ReaderLimit[];
}

export const SCALE_DTYPES: Readonly<Record<string, 'F16' | 'BF16' | 'F32'>> = { f16: 'F16', bf16: 'BF16', f32: 'F32' };

/** The reason for no static scale of activations. */
export const NO_INPUT = noForm('its input has no calibrated scale', 'Quantize it with --input-scales.');

/** What no form of floats has. */
export function floatProblem(module: CanonicalModule): NoForm | undefined {
  if (module.zeros.kind !== 'none') return noForm('floats have no zero points', 'Quantize it anew.');
  if (module.sparsity !== 'none')
    return noForm('it is 2:4 sparse', 'Pack it with --target sparse_marlin, or quantize it without --sparsity.');
  if (module.groupIndex || module.permutation)
    return noForm('its columns are in another order', 'Quantize it with --order static, which keeps them in place.');
  return undefined;
}
