import type { PackedDeclaration } from '../../formats/artifact/write.js';
import { plainDtype } from '../../formats/canonical/dequantize.js';
import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { moduleTensors } from '../../formats/canonical/tensors.js';
import type { TensorSpec } from '../../formats/safetensors/header.js';
import type { Decision, PackTarget, Taken } from './target.js';

/** The tensors that a module will have in the artifact. */
export function plannedTensors(checkpoint: CanonicalCheckpoint, name: string, decision: Decision): TensorSpec[] {
  if (decision.action !== 'fallback') return [...decision.tensors];
  const module = checkpoint.module(name);
  if (decision.form === 'carried') return [...moduleTensors(name, module).values()];
  const [n, k] = module.shape;
  return [
    {
      name: `${name}.weight`,
      dtype: plainDtype(module.sourceDtype),
      shape: module.transposed ? [k, n] : [n, k],
    },
  ];
}

/** Parts of a module whose hashes go along, in the order of the manifest. */
const PARTS = ['codes', 'scales', 'zeros', 'global_scale', 'g_idx', 'permutation', 'mask'] as const;

/** The manifest's entry of a module, but for the hashes of its tensors. */
export function declaration(
  checkpoint: CanonicalCheckpoint,
  name: string,
  decision: Decision,
  target: PackTarget,
): PackedDeclaration {
  const module = checkpoint.module(name);
  const { type, shape, granularity, scales, zeros, activations, sha256 } = module;
  const taken = decision.action === 'fallback' ? undefined : decision;
  const fallback = decision.action === 'fallback' ? decision : undefined;
  const left = fallback?.form === 'carried' ? 'in canonical form' : 'as a plain weight';
  return {
    type,
    shape,
    padded: taken ? [taken.padded[0], taken.padded[1]] : shape,
    granularity,
    scales,
    zeros,
    ...(module.transposed && { transposed: true }),
    ...(taken?.packing && { packing: taken.packing }),
    ...(taken?.ranks && { ranks: taken.ranks }),
    ...(activations && target.activations && { activations }),
    ...(taken?.inputMost !== undefined && { inputMost: taken.inputMost }),
    layout: fallback?.form ?? (taken as Taken).layout,
    notes: fallback ? [`Left ${left}, because ${fallback.reason}. ${fallback.remedy}`] : [...(taken as Taken).notes],
    tensors: plannedTensors(checkpoint, name, decision),
    canonical: Object.fromEntries(
      PARTS.flatMap((part) => (sha256[part] === undefined ? [] : [[part, sha256[part]]])),
    ) as PackedDeclaration['canonical'],
  };
}
