import { z } from 'zod';
import { scaleDtypeSchema } from '../../formats/canonical/schema.js';
import { LpqError } from '../core/error.js';
import { GPTQ_DEFAULTS } from '../gptq/options.js';

/** How a weight is stored; a recipe's rule may set the same fields for the modules it matches. */
const schemeFields = {
  /** An integer type of this many bits. */
  bits: z.int().min(1).max(8),
  /** A type by its name; instead of bits. */
  dtype: z.string().min(1),
  groupSize: z.union([z.literal('channel'), z.int().positive()]),
  symmetric: z.boolean(),
  scaleDtype: scaleDtypeSchema,
};

export const schemeSchema = z.strictObject(schemeFields).partial();
export type SchemeSettings = z.infer<typeof schemeSchema>;

/** Everything about a quantization that its bytes depend on, but for the model and the text. */
export const settingsSchema = z
  .strictObject({
    ...schemeFields,
    method: z.enum(['gptq', 'rtn']),
    order: z.enum(['static', 'group', 'none']),
    /** Share of GPTAQ's correction. */
    gptaq: z.number().min(0).max(1),
    /** Fraction of mean(diag H). */
    damp: z.number().positive().max(1),
    samples: z.int().positive(),
    seqLen: z.int().min(2),
    seed: z.int().nonnegative(),
    calibJoin: z.boolean(),
    lmHead: z.boolean(),
  })
  .partial();
export type Settings = z.infer<typeof settingsSchema>;

/** Settings with every default filled in; bits or dtype stands in the scheme. */
export type FullSettings = Required<Omit<Settings, 'bits' | 'dtype'>> & Pick<Settings, 'bits' | 'dtype'>;

export const DEFAULTS = {
  groupSize: 128,
  symmetric: true,
  scaleDtype: 'f16',
  method: 'gptq',
  order: GPTQ_DEFAULTS.order,
  gptaq: GPTQ_DEFAULTS.alpha,
  damp: GPTQ_DEFAULTS.damp,
  samples: 128,
  seqLen: 512,
  seed: 0,
  calibJoin: false,
  lmHead: false,
} as const satisfies Omit<FullSettings, 'bits' | 'dtype'>;

/** The option that sets a field, and what it takes. */
const FLAGS: Readonly<Record<keyof Settings, readonly [flag: string, takes: string]>> = {
  bits: ['--bits', 'an integer from 1 to 8'],
  dtype: ['--dtype', 'the name of a type, for example u3 or f6e3m2'],
  groupSize: ['--group-size', "a positive integer, or 'channel'"],
  symmetric: ['--sym', 'true or false'],
  scaleDtype: ['--scale-dtype', scaleDtypeSchema.options.join(', ')],
  method: ['--method', 'gptq or rtn'],
  order: ['--order', 'static, group or none'],
  gptaq: ['--gptaq', 'a number from 0 (off) to 1'],
  damp: ['--damp', 'a number above 0, at most 1'],
  samples: ['--samples', 'a positive integer'],
  seqLen: ['--seq-len', 'an integer of at least 2'],
  seed: ['--seed', 'a non-negative integer'],
  calibJoin: ['--calib-join', 'true or false'],
  lmHead: ['--lm-head', 'true or false'],
};

/** What a field takes, in words; undefined for a name that is no field. */
export function fieldTakes(name: string): string | undefined {
  return FLAGS[name as keyof Settings]?.[1];
}

/** Settings that only a method with calibration looks at. */
const CALIBRATED = ['order', 'gptaq', 'damp', 'samples', 'seqLen', 'seed', 'calibJoin'] as const;

/** The settings of the command line, checked. Throws LPQ_USAGE naming the option. */
export function checkFlags(given: Record<string, unknown>): Settings {
  const parsed = settingsSchema.safeParse(given);
  if (!parsed.success) {
    const field = String(parsed.error.issues[0]?.path[0]) as keyof Settings;
    const [flag, takes] = FLAGS[field];
    throw new LpqError('LPQ_USAGE', `${flag} does not take '${String(given[field])}'`, {
      got: String(given[field]),
      expected: takes,
    });
  }
  const settings = parsed.data;
  if (settings.bits !== undefined && settings.dtype !== undefined)
    throw new LpqError('LPQ_USAGE', '--bits and --dtype exclude each other', {
      hint: '--bits 4 is short for the integer type of 4 bits; use --dtype for every other type.',
    });
  return settings;
}

/** Command line before recipe before defaults. Throws LPQ_USAGE when nothing names a type, or an option has no effect. */
export function mergeSettings(flags: Settings, recipe: Settings): FullSettings {
  const { bits, dtype, ...base } = recipe;
  const named = flags.bits !== undefined || flags.dtype !== undefined ? flags : { bits, dtype };
  if (named.bits === undefined && named.dtype === undefined)
    throw new LpqError('LPQ_USAGE', 'nothing says which type to quantize to', {
      expected: '--bits N or --dtype T',
      hint: 'For example --bits 4, --dtype i8 or --dtype f4e2m1.',
    });
  const merged: FullSettings = { ...DEFAULTS, ...base, ...flags };
  const idle = merged.method === 'rtn' ? CALIBRATED.find((field) => flags[field] !== undefined) : undefined;
  if (idle)
    throw new LpqError('LPQ_USAGE', `${FLAGS[idle][0]} has no effect with --method rtn, which takes no calibration`, {
      hint: 'Leave the option out, or use --method gptq.',
    });
  delete merged.bits;
  delete merged.dtype;
  if (named.bits !== undefined) merged.bits = named.bits;
  if (named.dtype !== undefined) merged.dtype = named.dtype;
  return merged;
}
