import type { Granularity } from '../core/granularity.js';
import { LpqError } from '../core/error.js';
import { type QuantType, quantType } from '../core/quant-type.js';
import type { ModuleRule } from '../quantize/rules.js';
import type { QuantScheme } from '../quantize/scheme.js';
import type { RecipeRule } from './recipe.js';
import type { FullSettings, SchemeSettings } from './settings.js';

/** The fields of settings that make a scheme, all of them known. */
type SchemeParts = Required<Omit<SchemeSettings, 'bits' | 'dtype'>> & Pick<SchemeSettings, 'bits' | 'dtype'>;

/** The scheme that settings describe. Throws LPQ_TYPE, LPQ_USAGE. */
export function schemeFrom(parts: SchemeParts): QuantScheme {
  const type = typeFrom(parts);
  if (!parts.symmetric && type.kind === 'float')
    throw new LpqError('LPQ_USAGE', `${type.name} is symmetric about 0 by itself and takes no zero points`, {
      got: '--asym',
      hint: 'Leave --asym out, or choose an integer type.',
    });
  return {
    type,
    symmetric: parts.symmetric,
    granularity: granularityFrom(parts.groupSize),
    scaleDtype: parts.scaleDtype,
    // e4m3 reaches from 2^-9 to 448: only a second factor a tensor brings scales of any magnitude into that range.
    globalScale: parts.scaleDtype === 'f8_e4m3',
  };
}

/** The base scheme, and the recipe's rules over it. */
export function schemesFrom(settings: FullSettings, rules: readonly RecipeRule[]): { scheme: QuantScheme; rules: ModuleRule[] } {
  return {
    scheme: schemeFrom(settings),
    rules: rules.map(({ match, skip, scheme }) => ({ match, scheme: skip ? 'skip' : schemeFrom(override(settings, scheme)) })),
  };
}

/** A rule's fields over the run's; naming a type in either form replaces the run's type. */
function override(settings: FullSettings, scheme: SchemeSettings): SchemeParts {
  const { bits, dtype, ...rest } = settings;
  const named = scheme.bits !== undefined || scheme.dtype !== undefined;
  return { ...rest, ...(named ? {} : { ...(bits !== undefined && { bits }), ...(dtype !== undefined && { dtype }) }), ...scheme };
}

function typeFrom({ bits, dtype }: SchemeParts): QuantType {
  return quantType(dtype ?? `u${bits}`);
}

function granularityFrom(size: number | 'channel'): Granularity {
  return size === 'channel' ? { kind: 'channel' } : { kind: 'group', size };
}
