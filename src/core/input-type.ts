import { type QuantType, quantType } from './quant-type.js';

/** How the input of a linear is rounded before the product, token by token. */
export interface InputType {
  readonly type: QuantType;
  /** Neighbouring channels that share a scale. */
  readonly block: number;
  readonly scaleDtype: 'f8_e8m0' | 'f8_e4m3';
  /** Scales are multiples of a number that calibration finds for the linear (largest magnitude / 2688). */
  readonly calibrated: boolean;
}

/** OCP Microscaling Formats 1.0 (blocks of 32, powers of two), and NVFP4 (blocks of 16, e4m3 scales, a second level). */
export const INPUT_TYPES: Readonly<Record<InputTypeName, InputType>> = {
  mxfp4: { type: quantType('f4e2m1'), block: 32, scaleDtype: 'f8_e8m0', calibrated: false },
  mxfp8: { type: quantType('f8e4m3'), block: 32, scaleDtype: 'f8_e8m0', calibrated: false },
  nvfp4: { type: quantType('f4e2m1'), block: 16, scaleDtype: 'f8_e4m3', calibrated: true },
};

export const INPUT_TYPE_NAMES = ['mxfp4', 'mxfp8', 'nvfp4'] as const;
export type InputTypeName = (typeof INPUT_TYPE_NAMES)[number];

/** The largest NVFP4 number: 6, the top of f4e2m1, times 448, the top of e4m3. */
const LARGEST = 2688;

/** The second level of an input's scales; `most`: its largest magnitude over the calibration text. */
export function secondLevel({ calibrated }: InputType, most: number | undefined): number {
  return calibrated && most !== undefined ? Math.fround(most / LARGEST) : 1;
}
