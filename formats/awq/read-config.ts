import type { Granularity } from '../../src/core/granularity.js';
import { badSetting } from '../foreign/module.js';

/** What a reader needs of an AWQ quantization_config. */
export interface AwqConfig {
  readonly granularity: Granularity;
  readonly zeroPoint: boolean;
}

/** Reads a quantization_config (or an older quant_config.json) of anybody's. Throws LPQ_CONFIG naming the key. */
export function readAwqConfig(where: string, config: Readonly<Record<string, unknown>>): AwqConfig {
  const bits = config.bits ?? config.w_bit;
  const size = config.group_size ?? config.q_group_size;
  const { zero_point: zeroPoint = true, version = 'gemm' } = config;
  if (bits !== 4) return badSetting(where, 'bits', bits, '4, which is all that AWQ stores');
  if (typeof size !== 'number' || !Number.isInteger(size) || (size < 1 && size !== -1))
    return badSetting(where, 'group_size', size, '-1 or a positive integer');
  if (typeof zeroPoint !== 'boolean') return badSetting(where, 'zero_point', zeroPoint, 'true or false');
  if (typeof version !== 'string' || version.toLowerCase() !== 'gemm')
    return badSetting(
      where,
      'version',
      version,
      'gemm',
      'Convert it with the tool that wrote it, or quantize the original checkpoint.',
    );
  return { granularity: size === -1 ? { kind: 'channel' } : { kind: 'group', size }, zeroPoint };
}
