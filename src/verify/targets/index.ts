import type { VerifiedTarget } from '../target.js';
import { awq } from './awq.js';
import {
  compressedTensors,
  compressedTensorsW4A4,
  compressedTensorsW4A8,
  compressedTensorsW8A8,
} from './compressed-tensors.js';
import { gptq, gptqV2 } from './gptq.js';
import { modelopt } from './modelopt.js';
import { OWN } from './own.js';

const TARGETS = new Map(
  [
    ...[gptq, gptqV2, awq, compressedTensors, compressedTensorsW8A8, compressedTensorsW4A8, compressedTensorsW4A4],
    ...[modelopt, ...OWN],
  ].map((target) => [target.name, target]),
);

/** Undefined for a name that is none of lpq's targets of safetensors. */
export function verifiedTarget(name: string): VerifiedTarget | undefined {
  return TARGETS.get(name);
}

/** Whether what modules of the target read becomes codes: one scale per token, or W4Ax. */
export function quantizesActivations(target: string): boolean {
  return TARGETS.get(target)?.activations !== undefined;
}

/** The scheme of a cache that an artifact for the target has, of the one that its quantized checkpoint has. */
export function cacheOf<Cache extends object>(kv: Cache | undefined, name: string): Cache | undefined {
  const target = TARGETS.get(name);
  // W4Ax simulates a cache where its activations are codes, and nowhere else.
  return kv && target && ('form' in kv || target.activations === 'blocks') ? kv : undefined;
}
