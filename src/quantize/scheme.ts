import { type ScaleDtype, scaleDtypeSchema } from '../../formats/canonical/schema.js';
import { LpqError } from '../core/error.js';
import { type Granularity, printGranularity } from '../core/granularity.js';
import { type QuantType, quantType } from '../core/quant-type.js';
import { constantZero } from './grid.js';
import { GROUP_SIZES, groupSizeError, groupsFit } from './group-size.js';

/** What engines call FP8: their kernels have one scale per row or for square blocks, never for a row's groups. */
const FP8 = 'f8e4m3';

/** Everything that determines a weight's grid; docs/internals/numerics.md has the rules. */
export interface QuantScheme {
  readonly type: QuantType;
  readonly granularity: Granularity;
  /** Symmetric grids have one constant zero; asymmetric ones (integers only) a whole zero a group. */
  readonly symmetric: boolean;
  readonly scaleDtype: ScaleDtype;
  /** A second level, F32 [1] a tensor, that multiplies every scale; only and always with f8_e4m3 scales. */
  readonly globalScale: boolean;
  /** The scales of a row are whole multiples of one number, from -15 to 16 times it; each on its own without it. */
  readonly twoLevel?: true;
  /** Of every four input features that follow one another, two have weight 0; dense without it. */
  readonly sparsity?: '2:4';
}

export interface SchemeOptions {
  /** --bits N: iN, or uN when asymmetric (and for N = 1). */
  readonly bits?: number | string | undefined;
  /** --dtype: a type (u4, i3, f6e3m2), what other tools call one (int4, fp8), or a preset (mxfp4, nvfp4, ...). */
  readonly dtype?: string | undefined;
  /** --group-size: a number, or 'channel'. Default 128; channel for f8e4m3. */
  readonly groupSize?: number | string | undefined;
  readonly sym?: boolean | undefined;
  readonly asym?: boolean | undefined;
  /** --scale-dtype. Default f16. */
  readonly scaleDtype?: string | undefined;
  /** --group-scales: free, or integer, whole multiples (-15 to 16) of a scale a row. Default free. */
  readonly groupScales?: 'free' | 'integer' | undefined;
  /** --sparsity: none or 2:4. Default none. */
  readonly sparsity?: 'none' | '2:4' | undefined;
}

/** Microscaling formats: OCP MX 1.0 (blocks of 32, power-of-two scales) and NVFP4 (blocks of 16, e4m3 scales, global). */
export const PRESETS: Readonly<Record<string, { type: string; group: number; scaleDtype: ScaleDtype }>> = {
  mxfp4: { type: 'f4e2m1', group: 32, scaleDtype: 'f8_e8m0' },
  mxfp6: { type: 'f6e2m3', group: 32, scaleDtype: 'f8_e8m0' },
  mxfp6_e2m3: { type: 'f6e2m3', group: 32, scaleDtype: 'f8_e8m0' },
  mxfp6_e3m2: { type: 'f6e3m2', group: 32, scaleDtype: 'f8_e8m0' },
  mxfp8: { type: 'f8e4m3', group: 32, scaleDtype: 'f8_e8m0' },
  mxfp8_e4m3: { type: 'f8e4m3', group: 32, scaleDtype: 'f8_e8m0' },
  mxfp8_e5m2: { type: 'f8e5m2', group: 32, scaleDtype: 'f8_e8m0' },
  mxint8: { type: 'i8', group: 32, scaleDtype: 'f8_e8m0' },
  nvfp4: { type: 'f4e2m1', group: 16, scaleDtype: 'f8_e4m3' },
};

/** What other tools call a type: int4 and w4a16 are i4, or u4 where they have zero points; fp8 is f8e4m3. Other names as they are. */
function ownName(dtype: string, symmetric: boolean): string {
  const name = dtype.toLowerCase();
  if (name === W8A8) return 'i8';
  const [, unsigned, bits] = /^(u?)int([1-8])$/.exec(name.replace(/^w([1-8])a16$/, 'int$1')) ?? [];
  if (bits !== undefined) return unsigned || !symmetric || bits === '1' ? `u${bits}` : `i${bits}`;
  return own(FP8_NAMES, name) ?? dtype;
}

/** Integers of 8 bits with one scale per row, as kernels with activations of 8 bits read them (target compressed-tensors-w8a8). */
const W8A8 = 'w8a8';

const FP8_NAMES: Readonly<Record<string, string>> = {
  ...Object.fromEntries(['fp8', 'float8', 'e4m3', 'fp8_e4m3fn', 'float8_e4m3fn'].map((name) => [name, FP8])),
  ...Object.fromEntries(['e5m2', 'fp8_e5m2', 'float8_e5m2'].map((name) => [name, 'f8e5m2'])),
};

/** The scheme that command-line options (or a recipe's rule) ask for. Throws LPQ_USAGE and LPQ_TYPE. */
export function schemeFromOptions(options: SchemeOptions): QuantScheme {
  const { bits, dtype, sym, asym } = options;
  if (sym && asym)
    throw new LpqError('LPQ_USAGE', '--sym and --asym exclude each other', { hint: 'Give one of them.' });
  if ((bits === undefined) === (dtype === undefined))
    throw new LpqError('LPQ_USAGE', 'give the type of the quantized weights with --bits or with --dtype', {
      got: bits === undefined ? 'neither' : 'both',
      hint: 'Use for example --bits 4, or --dtype f6e3m2.',
    });
  const preset = dtype === undefined ? undefined : own(PRESETS, dtype.toLowerCase().replace(/-/g, '_'));
  const symmetric = !asym;
  const type = preset
    ? quantType(preset.type)
    : dtype === undefined
      ? typeOfBits(bits, symmetric)
      : quantType(ownName(dtype, symmetric));
  if (!symmetric && type.kind === 'float')
    throw new LpqError('LPQ_USAGE', `--asym does not go with ${dtype}: floats have symmetric grids`, {
      got: `--dtype ${dtype} --asym`,
      expected: 'an integer type, u1-u8 or i2-i8',
      hint: 'Leave --asym out.',
    });
  if (!symmetric && preset)
    throw new LpqError('LPQ_USAGE', `--asym does not go with ${dtype}`, { hint: 'Leave --asym out.' });
  const granularity =
    preset && options.groupSize === undefined
      ? ({ kind: 'group', size: preset.group } as const)
      : parseGroupSize(
          options.groupSize ?? (type.name === FP8 || dtype?.toLowerCase() === W8A8 ? 'channel' : undefined),
        );
  const scaleDtype =
    preset && options.scaleDtype === undefined ? preset.scaleDtype : parseScaleDtype(options.scaleDtype);
  if (preset && (printGranularity(granularity) !== String(preset.group) || scaleDtype !== preset.scaleDtype))
    throw new LpqError('LPQ_USAGE', `${dtype} means groups of ${preset.group} and ${preset.scaleDtype} scales`, {
      got: `--group-size ${printGranularity(granularity)} --scale-dtype ${scaleDtype}`,
      expected: `--group-size ${preset.group} --scale-dtype ${preset.scaleDtype}, or neither option`,
      hint: `Use --dtype ${preset.type} with the group size and scale type that you want.`,
    });
  const scheme = {
    ...{ type, granularity, symmetric, scaleDtype, globalScale: scaleDtype === 'f8_e4m3' },
    ...(options.groupScales === 'integer' && { twoLevel: true as const }),
  };
  checkTwoLevel(scheme, options);
  if (options.sparsity !== '2:4') return scheme;
  if (!Number.isInteger(constantZero(scheme)))
    throw new LpqError('LPQ_SPARSITY', `${type.name} has no code for 0, which pruned weights need`, {
      got: printScheme({ ...scheme, sparsity: '2:4' }),
      expected: 'any type but symmetric u1',
      hint: 'Use --asym, or --bits 2 and more.',
    });
  return { ...scheme, sparsity: '2:4' };
}

/** Throws LPQ_USAGE for a scheme whose scales of groups cannot be whole multiples of one a row. */
function checkTwoLevel(
  { twoLevel, type, granularity, symmetric, scaleDtype }: QuantScheme,
  { sparsity }: SchemeOptions,
): void {
  if (!twoLevel) return;
  const group = printGranularity(granularity);
  const wrong =
    type.name !== 'i4' || !symmetric
      ? `the type ${type.name}${symmetric ? '' : ', asymmetric'}`
      : group !== '128'
        ? `--group-size ${group}`
        : scaleDtype !== 'f16' && scaleDtype !== 'f32'
          ? `--scale-dtype ${scaleDtype}`
          : sparsity === '2:4'
            ? '--sparsity 2:4'
            : undefined;
  if (wrong === undefined) return;
  throw new LpqError('LPQ_USAGE', `--group-scales integer does not go with ${wrong}`, {
    got: wrong,
    expected: 'symmetric 4-bit integers (i4), groups of 128, scales in f16 or f32, dense',
    hint: 'Use --bits 4 --group-size 128, or leave --group-scales out.',
  });
}

/** 'i4 g128', 'u3 asym channel bf16': the form that tables and module lines use. */
export function printScheme(scheme: QuantScheme): string {
  const { type, granularity, symmetric, scaleDtype, twoLevel, sparsity } = scheme;
  const group = granularity.kind === 'channel' ? 'channel' : `g${granularity.size}`;
  return [
    type.name,
    ...(symmetric ? [] : ['asym']),
    group,
    ...(scaleDtype === 'f16' ? [] : [scaleDtype]),
    ...(twoLevel ? ['two-level'] : []),
    ...(sparsity ? [sparsity] : []),
  ].join(' ');
}

/** Throws LPQ_SPARSITY when the K input features of a module are no whole fours. */
export function checkSparsity(scheme: QuantScheme, moduleName: string, k: number): void {
  if (!scheme.sparsity || k % 4 === 0) return;
  throw new LpqError('LPQ_SPARSITY', `2:4 sparsity needs a multiple of 4 input features, and ${moduleName} has ${k}`, {
    got: `K = ${k}`,
    expected: 'K divisible by 4',
    hint: 'Keep this module dense with a recipe rule: "sparsity": "none".',
  });
}

/** Throws LPQ_GROUP_SIZE when the scheme's groups do not divide the K input features of a module. */
export function checkGroupSize(scheme: QuantScheme, moduleName: string, k: number): void {
  const linear = { name: moduleName, k };
  if (!groupsFit(scheme, k)) throw groupSizeError(scheme, [linear], [linear]);
}

function typeOfBits(bits: number | string | undefined, symmetric: boolean): QuantType {
  const value = Number(bits);
  if (!Number.isInteger(value) || value < 1 || value > 8 || String(bits).trim() === '')
    throw new LpqError('LPQ_USAGE', `--bits ${bits} is not a whole number from 1 to 8`, {
      got: bits,
      expected: '1 to 8',
      hint: 'Use for example --bits 4, or --dtype for a float type.',
    });
  // One bit has no signed integer: u1 with the zero 0.5 is +-scale/2.
  return quantType(`${symmetric && value > 1 ? 'i' : 'u'}${value}`);
}

function parseGroupSize(size: number | string | undefined): Granularity {
  if (size === undefined) return { kind: 'group', size: GROUP_SIZES[0] };
  if (size === 'channel') return { kind: 'channel' };
  const value = Number(size);
  if (Number.isInteger(value) && value > 0 && String(size).trim() !== '') return { kind: 'group', size: value };
  throw new LpqError('LPQ_USAGE', `--group-size ${size} is neither a positive whole number nor 'channel'`, {
    got: size,
    expected: "for example 128, or 'channel' for one scale per row",
    hint: 'Use --group-size 128.',
  });
}

function parseScaleDtype(name: string | undefined): ScaleDtype {
  if (name === undefined) return 'f16';
  const short: Record<string, string> = { e8m0: 'f8_e8m0', e4m3: 'f8_e4m3', fp16: 'f16', fp32: 'f32' };
  const parsed = scaleDtypeSchema.safeParse(own(short, name.toLowerCase()) ?? name.toLowerCase());
  if (parsed.success) return parsed.data;
  throw new LpqError('LPQ_USAGE', `--scale-dtype ${name} is not a type for scales`, {
    got: name,
    expected: scaleDtypeSchema.options.join(', '),
    hint: 'Use --scale-dtype f16.',
  });
}

/** A user's word may also be the name of something that every object inherits: constructor, __proto__. */
function own<T>(table: Readonly<Record<string, T>>, name: string): T | undefined {
  return Object.hasOwn(table, name) ? table[name] : undefined;
}
