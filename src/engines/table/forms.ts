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

/** FP8 with one scale per row, which engines multiply by FP8 activations. */
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

/** E2M1 in groups of 16 under two levels of scales. */
const nvfp4 = ({ type, scaleDtype, globalScale, sparsity }: QuantScheme): boolean =>
  type.name === 'f4e2m1' && scaleDtype === 'f8_e4m3' && globalScale && sparsity === undefined;

export const NVFP4: EngineForm = {
  says: 'NVFP4',
  options: '--dtype nvfp4',
  takes: nvfp4,
  groups: [16],
  target: 'compressed-tensors',
  calibrated: { target: 'compressed-tensors-w4a4' },
  scales: 'f16',
};

/** E4M3 with powers of two as scales, which engines multiply by activations of the same form. */
export const MXFP8: EngineForm = {
  says: 'MXFP8 weights and activations',
  options: '--dtype mxfp8',
  takes: ({ type, scaleDtype, sparsity }) =>
    type.name === 'f8e4m3' && scaleDtype === 'f8_e8m0' && sparsity === undefined,
  groups: [32],
  target: 'compressed-tensors-w8a8',
  scales: 'f16',
};
