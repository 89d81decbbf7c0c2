import type { SourceCheckpoint } from '../../formats/canonical/source.js';
import type { FloatView } from '../../formats/foreign/floats.js';
import { expertSource, slicesOf } from '../model/fused-experts.js';
import type { ModulePlan } from './plan.js';

/**
 * Modules of a plan whose weights are there in a few bits and nothing wider: quantizing them again adds an error to the
 * one that the published codes have. Codes of 8 bits are as good as floats: a step of theirs is a sixteenth of one of 4 bits.
 */
export function requantized(checkpoint: SourceCheckpoint, plan: ModulePlan): { bits: number; modules: string[] } {
  const { bits = 16, decodedNames } = checkpoint.weights as Partial<Pick<FloatView, 'bits' | 'decodedNames'>>;
  if (bits >= 8 || !decodedNames) return { bits: 16, modules: [] };
  const decoded = new Set(decodedNames.call(checkpoint.weights));
  const slices = slicesOf(expertSource(checkpoint));
  const modules = [...plan.keys()].filter((module) => {
    const name = `${module}.weight`;
    return decoded.has(slices.get(name)?.tensor ?? name);
  });
  return { bits, modules };
}
