import type { SourceCheckpoint } from '../../formats/canonical/source.js';
import { FloatView } from '../../formats/foreign/floats.js';
import { expertSource, slicesOf } from '../model/fused-experts.js';
import type { ModulePlan } from './plan.js';

/**
 * Modules of a plan whose weights are published in a few bits and nothing wider: quantizing them again adds an error to the
 * one that the published codes have. Codes of 8 bits are as good as floats: a step of theirs is a sixteenth of one of 4 bits.
 */
export function requantized(checkpoint: SourceCheckpoint, plan: ModulePlan): { bits: number; modules: string[] } {
  const { weights } = checkpoint;
  if (!(weights instanceof FloatView) || weights.bits >= 8) return { bits: 16, modules: [] };
  const decoded = new Set(weights.decodedNames());
  const slices = slicesOf(expertSource(checkpoint));
  const modules = [...plan.keys()].filter((module) => {
    const name = `${module}.weight`;
    return decoded.has(slices.get(name)?.tensor ?? name);
  });
  return { bits: weights.bits, modules };
}
