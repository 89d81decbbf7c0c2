import type { CanonicalModule } from '../../../formats/canonical/schema.js';
import { type GgufTypeName, ggufType } from '../../../formats/gguf/types.js';
import { groupSizeOf } from '../../core/granularity.js';
import { floatProblem } from '../compressed.js';
import { hasForm, integerForm, type NoForm, noForm } from '../integer-form.js';
import type { ModuleFacts } from '../target.js';

/** How the codes of a module become blocks of 32 whose grid is their own. */
export interface CodesForm {
  readonly kind: 'codes';
  readonly type: GgufTypeName;
  readonly bits: number;
  /** Stored code = ((canonical code exclusive-or flip) + add) mod 256. */
  readonly flip: number;
  readonly add: number;
  /** Input features that share a scale: a multiple of 32. */
  readonly group: number;
  /** A minimum of -(zero * scale) in f16 a block. */
  readonly minima: boolean;
}

/** Blocks found by search in the weights. */
export interface SearchForm {
  readonly kind: 'search';
  readonly type: GgufTypeName;
}

/** Floats of 4 bits with powers of two as scales, copied block by block. */
export interface FoursForm {
  readonly kind: 'fours';
  readonly type: 'mxfp4';
}

export type GgufForm = CodesForm | FoursForm | SearchForm;

/** Types whose value is (q - center) * d, by the codes that q holds. */
const CENTERED = [
  { type: 'q4_0', center: 8, low: 0, high: 15 },
  { type: 'q5_0', center: 16, low: 0, high: 31 },
  { type: 'q8_0', center: 0, low: -128, high: 127 },
] as const;

/**
 * The type of GGUF whose grid is that of a module's codes, or why there is none. One zero point for all moves the codes by a
 * whole number: q4_0, q5_0 or q8_0, whichever is the smallest that holds them. Zero points a group become minima in f16: q4_1
 * or q5_1. Scales of longer groups, or of whole rows, are repeated in each block.
 */
export function codesForm(module: CanonicalModule, facts: ModuleFacts): CodesForm | NoForm {
  const search = 'Pack it for gguf-q4_k or another searched type.';
  const form = integerForm(module, facts);
  if (!hasForm(form)) return form;
  const [, k] = module.shape;
  const { bits, bias: flip, zero } = form;
  const group = groupSizeOf(module.granularity, k);
  if (module.groupIndex)
    return noForm('its groups follow g_idx, which GGUF does not have', 'Quantize it with --order static.');
  if (module.scales.dtype !== 'f16')
    return noForm(`its scales are ${module.scales.dtype}, and GGUF has f16 scales`, 'Quantize it with f16 scales.');
  if (group % 32 !== 0)
    return noForm(`its groups of ${group} are not a multiple of GGUF's 32`, 'Quantize it with --group-size 32.');
  const base = { kind: 'codes', bits, flip, group } as const;
  if (zero !== 'tensor') {
    const [low, high] = [-zero, 2 ** bits - 1 - zero];
    const fit = CENTERED.find(({ center, low: least, high: most }) => low + center >= least && high + center <= most);
    if (!fit) return noForm(`codes from ${low} to ${high} steps fit no GGUF type`, search);
    return { ...base, type: fit.type, add: (fit.center - zero + 256) % 256, minima: false };
  }
  if (bits > 5)
    return noForm(`GGUF has no asymmetric codes of ${bits} bits`, 'Quantize it with --sym, or with at most 5 bits.');
  return { ...base, type: bits <= 4 ? 'q4_1' : 'q5_1', add: 0, minima: true };
}

/** The form that holds a module's codes exactly: integers, or floats of 4 bits with powers of two as scales. */
export function ownForm(module: CanonicalModule, facts: ModuleFacts): CodesForm | FoursForm | NoForm {
  return isMxfp4(module) ? { kind: 'fours', type: 'mxfp4' } : codesForm(module, facts);
}

function isMxfp4(module: CanonicalModule): boolean {
  const { type, granularity, scales } = module;
  const grouped = granularity.kind === 'group' && granularity.size === 32 && scales.block[0] === 1;
  return (
    type === 'f4e2m1' && grouped && scales.dtype === 'f8_e8m0' && !scales.global && floatProblem(module) === undefined
  );
}

/** The searched type, or what stands in for it where rows are no whole super-blocks. */
export function searchForm(wanted: GgufTypeName, k: number): SearchForm | NoForm {
  if (k % ggufType(wanted).block === 0) return { kind: 'search', type: wanted };
  if (k % 32 === 0) return { kind: 'search', type: 'q8_0' };
  return { reason: `K = ${k} is not a multiple of 32`, remedy: 'Only plain floats have such rows in GGUF.' };
}
