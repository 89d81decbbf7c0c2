import { z } from 'zod';
import { MOST_RESIDUAL } from '../../../formats/kv/scheme.js';
import { LpqError } from '../../core/error.js';
import { hintFor, type Meanings } from '../../core/names.js';
import { GPTQ_DEFAULTS, SPARSE_ALPHA } from '../../gptq/options.js';

/** How a weight is stored; a recipe's rule may set the same fields for the modules it matches. */
export const schemeSettings = z
  .strictObject({
    /** An integer type of this many bits. */
    bits: z.int().min(1).max(8),
    /** A type or a preset by its name; instead of bits. */
    dtype: z.string().min(1),
    groupSize: z.union([z.literal('channel'), z.int().positive()]),
    symmetric: z.boolean(),
    scaleDtype: z.string().min(1),
    sparsity: z.enum(['none', '2:4']),
  })
  .partial();
export type SchemeSettings = z.infer<typeof schemeSettings>;

/** How the scheme is reached. */
const methodSettings = z.strictObject({
  method: z.enum(['gptq', 'rtn', 'fmpq']),
  order: z.enum(['static', 'group', 'none']),
  /** Share of GPTAQ's correction. */
  gptaq: z.number().min(0).max(1),
  /** Fraction of mean(diag H). */
  damp: z.number().positive().max(1),
  /** Signs of the scales of symmetric integers. */
  scaleSign: z.enum(['either', 'positive']),
  samples: z.int().positive(),
  seqLen: z.int().min(2),
  seed: z.int().nonnegative(),
  calibJoin: z.boolean(),
  /** Whether sequences begin as the tokenizer begins a text, with the bos token in any case, or with neither. */
  bos: z.enum(['auto', 'always', 'never']),
  lmHead: z.boolean(),
});
type MethodSettings = z.infer<typeof methodSettings>;

/** Of --method fmpq alone (docs/fmpq.md); none of them has a default here. */
const fmpqSettings = z
  .strictObject({
    /** Share of the multiplications that read 4-bit codes. */
    actInt4Share: z.number().min(0).max(1),
    /** Relative squared error that 4 bits may add in a block; instead of a share. */
    actThreshold: z.number().positive(),
    actSearch: z.enum(['swap', 'error', 'absmax', 'none']),
    /** False: no permutation is stored where none can be folded. */
    actGather: z.boolean(),
    /** Alpha of the balance between channels and weights; 0: none. */
    actScale: z.number().min(0).max(1),
    /** Bits of keys and values. */
    actKv: z.int().min(2).max(8),
  })
  .partial();
type FmpqSettings = z.infer<typeof fmpqSettings>;

/** How the cache of keys and values is packed (docs/kv-cache.md); none of them has a default here. */
const kvSettings = z
  .strictObject({
    kv: z.enum(['2', '4', '8', 'k8v4']),
    kvGranularity: z.enum(['channel', 'token']),
    kvGroup: z.int().positive(),
    kvResidual: z.int().nonnegative().max(MOST_RESIDUAL),
  })
  .partial();
export type KvSettings = z.infer<typeof kvSettings>;
const FMPQ_FIELDS = Object.keys(fmpqSettings.shape) as (keyof FmpqSettings)[];

/** Everything about a quantization that its bytes depend on, but for the model and the text. */
export const settingsSchema = z.strictObject({
  ...schemeSettings.shape,
  ...methodSettings.partial().shape,
  ...fmpqSettings.shape,
  ...kvSettings.shape,
});
export type Settings = z.infer<typeof settingsSchema>;

/** With the defaults of the method filled in; those of the scheme depend on its type. */
export type FullSettings = SchemeSettings & MethodSettings & FmpqSettings & KvSettings;

export const DEFAULTS: MethodSettings = {
  method: 'gptq',
  order: GPTQ_DEFAULTS.order,
  gptaq: GPTQ_DEFAULTS.alpha,
  damp: GPTQ_DEFAULTS.damp,
  scaleSign: 'either',
  samples: 128,
  seqLen: 512,
  seed: 0,
  calibJoin: false,
  bos: 'auto',
  lmHead: false,
};

/** The option that sets a field, and what it takes. */
const FIELDS: Readonly<Record<keyof Settings, readonly [flag: string, takes: string]>> = {
  bits: ['--bits', 'an integer from 1 to 8'],
  dtype: ['--dtype', 'the name of a type, for example u3 or f6e3m2'],
  groupSize: ['--group-size', "a positive integer, or 'channel'"],
  symmetric: ['--sym', 'true or false'],
  scaleDtype: ['--scale-dtype', 'f16, bf16, f32, e8m0 or e4m3'],
  sparsity: ['--sparsity', 'none or 2:4'],
  method: ['--method', 'gptq, rtn or fmpq'],
  order: ['--order', 'static, group or none'],
  gptaq: ['--gptaq', 'a number from 0 (off) to 1'],
  damp: ['--damp', 'a number above 0, at most 1'],
  scaleSign: ['--scale-sign', 'either or positive'],
  samples: ['--samples', 'a positive integer'],
  seqLen: ['--seq-len', 'an integer of at least 2'],
  seed: ['--seed', 'a non-negative integer'],
  calibJoin: ['--calib-join', 'true or false'],
  bos: ['--bos', 'auto, always or never'],
  lmHead: ['--lm-head', 'true or false'],
  actInt4Share: ['--act-int4-share', 'a number from 0 to 1'],
  actThreshold: ['--act-threshold', 'a number above 0'],
  actSearch: ['--act-search', 'swap, error, absmax or none'],
  actGather: ['--no-act-gather', 'true or false'],
  actScale: ['--act-scale', 'a number from 0 (off) to 1'],
  actKv: ['--act-kv', 'an integer from 2 to 8'],
  kv: ['--kv', '2, 4, 8 or k8v4'],
  kvGranularity: ['--kv-granularity', 'channel or token'],
  kvGroup: ['--kv-group', '32, 64 or 128'],
  kvResidual: ['--kv-residual', `0 or a number of tokens, at most ${MOST_RESIDUAL}`],
};

/** The option that sets a field; undefined for a name that is no field. */
export function fieldFlag(name: string): string | undefined {
  return Object.hasOwn(FIELDS, name) ? FIELDS[name as keyof Settings][0] : undefined;
}

/** What a field takes, in words; undefined for a name that is no field. */
export function fieldTakes(name: string): string | undefined {
  return Object.hasOwn(FIELDS, name) ? FIELDS[name as keyof Settings][1] : undefined;
}

const TARGET = 'names a format, not a method: quantize with --method gptq, and pack with lpq pack --target';
const OTHER = 'lpq does not have it: --method gptq, the default, comes closest; rtn needs no calibration.';

/** What people write for a field that takes one of a few words. */
const MEANINGS: Partial<Record<keyof Settings, Meanings>> = {
  method: {
    awq: `AWQ ${TARGET} awq.`,
    gguf: `GGUF ${TARGET} gguf.`,
    marlin: `MARLIN ${TARGET} marlin.`,
    'compressed-tensors': `compressed-tensors ${TARGET} compressed-tensors.`,
    ...Object.fromEntries(['round', 'none', 'naive', 'minmax', 'nearest'].map((name) => [name, 'Use --method rtn.'])),
    ...Object.fromEntries(
      ['smoothquant', 'autoround', 'hqq', 'quip', 'quip#', 'spinquant', 'bnb', 'bitsandbytes', 'nf4', 'aqlm'].map(
        (name) => [name, OTHER],
      ),
    ),
  },
};

/** The words that a field takes; none for a number. */
function wordsOf(field: keyof Settings): readonly string[] {
  const shape = settingsSchema.shape[field];
  const inner = 'unwrap' in shape ? shape.unwrap() : shape;
  const options: readonly unknown[] = 'options' in inner ? inner.options : [];
  return options.filter((word): word is string => typeof word === 'string');
}

/** The settings of the command line, checked. Throws LPQ_USAGE naming the option. */
export function checkFlags(given: Readonly<Record<string, unknown>>): Settings {
  const parsed = settingsSchema.safeParse(given);
  if (parsed.success) {
    const { bits, dtype } = parsed.data;
    if (bits === undefined || dtype === undefined) return parsed.data;
    throw new LpqError('LPQ_USAGE', '--bits and --dtype exclude each other', {
      hint: '--bits 4 is short for the integer type of 4 bits; use --dtype for every other type.',
    });
  }
  const field = String(parsed.error.issues[0]?.path[0]) as keyof Settings;
  const [flag, takes] = FIELDS[field];
  const got = String(given[field]);
  const hint = hintFor(got, wordsOf(field), MEANINGS[field]);
  throw new LpqError('LPQ_USAGE', `${flag} does not take '${got}'`, { got, expected: takes, ...(hint && { hint }) });
}

/** Fields that only a method with calibration looks at. */
const CALIBRATED = ['order', 'gptaq', 'damp', 'scaleSign', 'samples', 'seqLen', 'seed', 'calibJoin', 'bos'] as const;

/**
 * Command line before recipe before defaults. Throws LPQ_USAGE when nothing names a type though one is needed (`typed`), or
 * an option has no effect.
 */
export function mergeSettings(flags: Settings, recipe: Settings, typed = true): FullSettings {
  const given = overrideScheme(recipe, flags);
  const gptaq = given.sparsity === '2:4' ? SPARSE_ALPHA : DEFAULTS.gptaq;
  const merged = { ...DEFAULTS, gptaq, ...given } as FullSettings;
  if (typed && merged.bits === undefined && merged.dtype === undefined)
    throw new LpqError('LPQ_USAGE', 'nothing says which type to quantize to', {
      expected: '--bits N or --dtype T',
      hint: 'Use for example --bits 4, --dtype i8 or --dtype f4e2m1.',
    });
  const idle = merged.method === 'rtn' ? CALIBRATED.find((field) => flags[field] !== undefined) : undefined;
  if (idle)
    throw new LpqError('LPQ_USAGE', `${FIELDS[idle][0]} has no effect with --method rtn, which takes no calibration`, {
      hint: 'Leave the option out, or use --method gptq.',
    });
  const foreign = merged.method === 'fmpq' ? undefined : FMPQ_FIELDS.find((field) => merged[field] !== undefined);
  if (foreign)
    throw new LpqError('LPQ_USAGE', `${FIELDS[foreign][0]} has no effect with --method ${merged.method}`, {
      hint: 'Leave the option out, or use --method fmpq, which quantizes activations too.',
    });
  if (merged.kv !== undefined && merged.actKv !== undefined)
    throw new LpqError('LPQ_USAGE', '--kv and --act-kv exclude each other', {
      hint: '--kv packs the cache for attention kernels; --act-kv is the simulation that FMPQ calibrates with.',
    });
  requireKv(merged);
  if (merged.actInt4Share !== undefined && merged.actThreshold !== undefined)
    throw new LpqError('LPQ_USAGE', '--act-int4-share and --act-threshold exclude each other', {
      hint: 'A share says how many blocks have 4 bits, a threshold which; give one of them.',
    });
  return inOrder(merged);
}

/** Fields in the order of the schema: what is recorded does not tell flags from recipes. */
function inOrder(settings: FullSettings): FullSettings {
  const names = Object.keys(settingsSchema.shape) as (keyof Settings)[];
  return Object.fromEntries(
    names.filter((name) => settings[name] !== undefined).map((name) => [name, settings[name]]),
  ) as FullSettings;
}

/** Throws LPQ_USAGE for options of the cache without --kv. */
export function requireKv({ kv, ...rest }: KvSettings): void {
  const idle = (['kvGranularity', 'kvGroup', 'kvResidual'] as const).find((field) => rest[field] !== undefined);
  if (kv === undefined && idle)
    throw new LpqError('LPQ_USAGE', `${FIELDS[idle][0]} has no effect without --kv`, {
      hint: 'Say how many bits keys and values have, for example --kv 4.',
    });
}

/** Which options of `lpq quantize` about calibration were given. */
interface CalibrationGiven {
  readonly calib: boolean;
  readonly saveStats: boolean;
  readonly stats: boolean;
}

/**
 * The settings with what saved statistics leave of them: GPTAQ's correction needs activations of both models. `flags` are
 * those of the command line. Throws LPQ_USAGE naming an option that has no effect.
 */
export function checkCalibration(settings: FullSettings, flags: Settings, given: CalibrationGiven): FullSettings {
  const { calib, saveStats, stats } = given;
  const idle = ([calib && '--calib', saveStats && '--save-stats', stats && '--stats'] as const).find((flag) => flag);
  if (settings.method === 'rtn' && idle)
    throw new LpqError('LPQ_USAGE', `${idle} has no effect with --method rtn, which takes no calibration`, {
      hint: 'Leave the option out, or use --method gptq.',
    });
  if (!stats) return settings;
  if (settings.method === 'fmpq')
    throw new LpqError('LPQ_USAGE', '--method fmpq needs activations, which --stats does not have', {
      hint: 'Leave --stats out: weights are solved for the quantized activations, which takes a forward pass.',
    });
  if (saveStats) throw new LpqError('LPQ_USAGE', '--save-stats and --stats exclude each other');
  const text = (['samples', 'seqLen', 'seed', 'calibJoin', 'bos'] as const).find((field) => flags[field] !== undefined);
  const flag = calib ? '--calib' : text && FIELDS[text][0];
  if (flag)
    throw new LpqError('LPQ_USAGE', `${flag} has no effect with --stats, which was taken with a text of its own`, {
      hint: 'Leave one of them out.',
    });
  if (flags.gptaq)
    throw new LpqError('LPQ_USAGE', '--gptaq needs the activations of both models, which --stats does not have', {
      got: flags.gptaq,
      expected: '0, or no --stats',
    });
  return { ...settings, gptaq: 0 };
}

/** `over` over `base`; a type named in either form (bits, dtype) replaces the other's. */
export function overrideScheme<T extends SchemeSettings, U extends SchemeSettings>(base: T, over: U): T & U {
  const { bits, dtype, ...rest } = base;
  const named = over.bits !== undefined || over.dtype !== undefined;
  const type = { ...(bits !== undefined && { bits }), ...(dtype !== undefined && { dtype }) };
  return { ...rest, ...(named ? {} : type), ...over } as T & U;
}
