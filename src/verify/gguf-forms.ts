import type { PackedModule } from '../../formats/artifact/schema.js';
import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import { typed } from '../../native/binding.js';
import { groupSizeOf } from '../core/granularity.js';
import { quantType } from '../core/quant-type.js';

/** What decides in which type a module is stored. */
export type FormFacts = Pick<PackedModule, 'type' | 'shape' | 'granularity' | 'scales' | 'zeros'> & {
  /** Columns in an order of their own, groups by g_idx, weights that a mask drops. */
  readonly rearranged: boolean;
  /** Least and largest zero point; undefined where they are not at hand. */
  readonly zeroRange: readonly [number, number] | undefined;
};

/** Blocks of 32 without a minimum: the steps that their codes can be from zero. */
const STEPS = [
  ['q4_0', -8, 7],
  ['q5_0', -16, 15],
  ['q8_0', -128, 127],
] as const;

export function factsOfPacked(module: PackedModule): FormFacts {
  const { g_idx, permutation, mask } = module.canonical;
  return { ...module, rearranged: (g_idx ?? permutation ?? mask) !== undefined, zeroRange: undefined };
}

export function factsOfCanonical(canonical: CanonicalCheckpoint, name: string): FormFacts {
  const module = canonical.module(name);
  const rearranged = module.groupIndex || module.permutation || module.sparsity !== 'none';
  if (module.zeros.kind !== 'int') return { ...module, rearranged, zeroRange: undefined };
  const zeros = canonical.require(name, 'zeros');
  let [low, high] = [Number.POSITIVE_INFINITY, Number.NEGATIVE_INFINITY];
  for (const zero of typed<Uint8Array | Int16Array>(zeros)) {
    if (zero < low) low = zero;
    if (zero > high) high = zero;
  }
  zeros.dispose();
  return { ...module, rearranged, zeroRange: [low, high] };
}

/** The type of a module's blocks for a target; undefined where it stays a plain weight. */
export function blockTypeOf(target: string, facts: FormFacts): string | undefined {
  const [, k] = facts.shape;
  if (target === 'gguf') return isMxfp4(facts) ? 'mxfp4' : typeOfCodes(facts);
  const wanted = target.slice('gguf-'.length);
  if (k % (wanted === 'q8_0' ? 32 : 256) === 0) return wanted;
  return k % 32 === 0 ? 'q8_0' : undefined;
}

/** Floats of 4 bits under powers of two are what mxfp4 holds. */
function isMxfp4({ type, granularity, scales, zeros, rearranged }: FormFacts): boolean {
  const grouped = granularity.kind === 'group' && granularity.size === 32 && scales.block[0] === 1;
  return (
    type === 'f4e2m1' && grouped && scales.dtype === 'f8_e8m0' && !scales.global && zeros.kind === 'none' && !rearranged
  );
}

/** The type whose grid is W = (q - z) s in f16, one s for each 32 columns or more of a row. */
function typeOfCodes({ type: name, shape, granularity, scales, zeros, rearranged, zeroRange }: FormFacts) {
  const type = quantType(name);
  if (type.kind !== 'int' || rearranged || zeros.kind === 'float') return undefined;
  if (scales.dtype !== 'f16' || scales.global || scales.block[0] !== 1) return undefined;
  if (groupSizeOf(granularity, shape[1]) % 32 !== 0) return undefined;
  const codes = 2 ** type.bits;
  const lowest = type.signed ? -codes / 2 : 0;
  const inRange = (zero: number): boolean => Number.isInteger(zero) && zero >= lowest && zero < lowest + codes;
  if (zeros.kind === 'int') {
    if (type.bits > 5 || (zeroRange && !zeroRange.every(inRange))) return undefined;
    return type.bits === 5 ? 'q5_1' : 'q4_1';
  }
  const zero = zeros.kind === 'const' ? zeros.value : 0;
  if (!inRange(zero)) return undefined;
  return STEPS.find(([, least, most]) => lowest - zero >= least && lowest + codes - 1 - zero <= most)?.[0];
}
