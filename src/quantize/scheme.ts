import type { ScaleDtype } from '../../formats/canonical/schema.js';
import type { Granularity } from '../core/granularity.js';
import { type QuantType, quantType } from '../core/quant-type.js';

export interface QuantScheme {
  readonly type: QuantType;
  readonly granularity: Granularity;
  readonly symmetric: boolean;
  readonly scaleDtype: ScaleDtype;
  readonly globalScale: boolean;
}
export function schemeFromOptions(o: { bits?: number; sym?: boolean; groupSize?: number | 'channel' }): QuantScheme {
  const symmetric = o.sym !== false;
  return {
    type: quantType(`${symmetric ? 'i' : 'u'}${o.bits}`),
    granularity: o.groupSize === 'channel' ? { kind: 'channel' } : { kind: 'group', size: o.groupSize ?? 128 },
    symmetric, scaleDtype: 'f16', globalScale: false,
  };
}
