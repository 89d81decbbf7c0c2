import type { QuantScheme } from '../../quantize/scheme.js';
import type { EngineForm } from '../engine.js';

/** Integers of these widths; dense, with one level of scales. */
export function integers(bits: readonly number[], symmetric: boolean): (scheme: QuantScheme) => boolean {
  return (scheme) =>
    scheme.type.kind === 'int' &&
    bits.includes(scheme.type.bits) &&
    scheme.symmetric === symmetric &&
    scheme.sparsity === undefined &&
    !scheme.scaleDtype.startsWith('f8');
}

/** FP8 with a scale a row, which engines multiply by FP8 activations. */
export const fp8 = ({ type, scaleDtype, sparsity }: QuantScheme): boolean =>
  type.name === 'f8e4m3' && !scaleDtype.startsWith('f8') && sparsity === undefined;

/** Group sizes that Marlin and Machete have kernels for. */
export const MARLIN_GROUPS = [128, 64, 32, 'channel'] as const;

export const INT4: EngineForm = {
  says: '4-bit integers, symmetric',
  options: '--bits 4',
  takes: integers([4], true),
  groups: MARLIN_GROUPS,
  target: 'compressed-tensors',
  scales: 'model',
};

export const INT8: EngineForm = {
  ...INT4,
  says: '8-bit integers, symmetric',
  options: '--bits 8',
  takes: integers([8], true),
};

export const AWQ4: EngineForm = {
  says: '4-bit integers with zero points',
  options: '--bits 4 --asym',
  takes: integers([4], false),
  groups: [128, 64, 32],
  target: 'awq',
  scales: 'f16',
};

export const FP8: EngineForm = {
  says: 'FP8 weights and activations',
  options: '--dtype f8e4m3',
  takes: fp8,
  groups: ['channel'],
  target: 'compressed-tensors-w8a8',
  scales: 'model',
};
