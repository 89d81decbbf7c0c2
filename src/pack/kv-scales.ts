import type { CanonicalManifest, KvMost } from '../../formats/canonical/schema.js';
import type { TensorSpec } from '../../formats/safetensors/header.js';
import type { Tensor } from '../../native/binding.js';
import { fp8Scale } from './layouts/whole-bytes.js';
import type { PackTarget } from './target.js';

const SIDES = [
  ['k', 'keys'],
  ['v', 'values'],
] as const;

/** The calibrated FP8 scales of the cache that a target's readers look for, if there are any. The caller disposes of the tensors. */
export function kvScales(
  { kvMost: most }: Pick<CanonicalManifest, 'kvMost'>,
  target: PackTarget,
): { most: KvMost; specs: TensorSpec[]; tensors(): Iterable<[string, Tensor]> } | undefined {
  if (!most || !target.kvScale) return undefined;
  const all = Object.entries(most).flatMap(([attention, found]) =>
    SIDES.map(([side, part]) => ({ spec: target.kvScale!(attention, side), most: found[part] })),
  );
  return {
    most,
    specs: all.map(({ spec }) => spec),
    *tensors() {
      for (const { spec, most: largest } of all) yield [spec.name, fp8Scale(largest, spec.shape)];
    },
  };
}

/** The warning about calibrated scales that a target does not store. */
export function lostScales({ kvMost }: Pick<CanonicalManifest, 'kvMost'>, target: PackTarget): string[] {
  if (!kvMost || target.kvScale) return [];
  return [`The calibrated scales of keys and values are left out, because ${target.name} does not store them.`];
}
