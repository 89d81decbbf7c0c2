import { z } from 'zod';
import { LpqError } from '../../core/error.js';
import { INPUT_TYPES, type InputTypeName } from '../../core/input-type.js';
import { hintFor, type Meanings } from '../../core/names.js';
import { type Method, needsOf } from '../../quantize/method.js';
import {
  flagOf,
  isWords,
  type MethodOption,
  type OptionValue,
  type OptionValues,
  saysOf,
} from '../../quantize/option.js';
import {
  CALIBRATION_FIELDS,
  FIELDS,
  fieldOf,
  KV_FIELDS,
  METHODS_FIELDS,
  RANGE_FIELDS,
  SCHEME_FIELDS,
  TEXT_FIELDS,
} from './fields.js';
import { METHODS, methodOf, methodThat } from './methods.js';

/** How a weight is stored; a recipe's rule may set the same fields for the modules it matches. */
export interface SchemeSettings {
  /** An integer type of this many bits. */
  readonly bits?: number;
  /** A type or a preset by its name; instead of bits. */
  readonly dtype?: string;
  readonly groupSize?: number | 'channel';
  readonly symmetric?: boolean;
  readonly scaleDtype?: string;
  readonly groupScales?: 'free' | 'integer';
  readonly sparsity?: 'none' | '2:4';
}

/** How the cache of keys and values is packed (docs/kv-cache.md); none of them has a default here. */
export interface KvSettings {
  readonly kv?: '2' | '4' | '8' | 'k8v4';
  readonly kvGranularity?: 'channel' | 'token';
  readonly kvGroup?: number;
  readonly kvResidual?: number;
  readonly kvLayers?: string;
  readonly kvFit?: boolean;
}

/** What every method's run has, beside the options of the method itself. */
interface RunSettings {
  readonly method: string;
  readonly samples: number;
  readonly seqLen: number;
  readonly seed: number;
  readonly calibJoin: boolean;
  /** Whether sequences begin as the tokenizer begins a text, with the bos token in any case, or with neither. */
  readonly bos: 'auto' | 'always' | 'never';
  readonly lmHead: boolean;
  readonly mtp?: boolean;
  readonly inputScales?: boolean;
  readonly kvScales?: boolean;
  readonly inputDtype?: InputTypeName;
}

/** Everything about a quantization that its bytes depend on, but for the model and the text. */
export type Settings = SchemeSettings & KvSettings & Partial<RunSettings> & OptionValues;
/** With the defaults of the run and of its method filled in; those of the scheme depend on its type. */
export type FullSettings = SchemeSettings & KvSettings & RunSettings & OptionValues;

/** What a field's value must be. */
function schemaOf({ field, takes }: MethodOption): z.ZodType<OptionValue> {
  if (field === 'groupSize') return z.union([z.literal('channel'), z.int().positive()]);
  if (takes === 'switch') return z.boolean();
  if (takes === 'text') return z.string().min(1);
  if (isWords(takes)) return z.enum(takes);
  const { least, above, most, integer } = takes;
  let schema = integer ? z.int() : z.number();
  if (least !== undefined) schema = schema.min(least);
  if (above !== undefined) schema = schema.gt(above);
  return most === undefined ? schema : schema.max(most);
}

/** The fields as a recipe may have them. */
export function shapeOf(fields: readonly MethodOption[]): Record<string, z.ZodOptional<z.ZodType<OptionValue>>> {
  return Object.fromEntries(fields.map((field) => [field.field, schemaOf(field).optional()]));
}

export const schemeShape = shapeOf(SCHEME_FIELDS);
export const settingsShape = shapeOf(FIELDS);
const settingsSchema = z.strictObject(settingsShape);

const TARGET = 'names a format, not a method: quantize with --method gptq, and pack with lpq pack --target';
const OTHER = 'lpq does not have it: --method gptq, the default, comes closest; rtn needs no calibration.';

/** What people write for a field that takes one of a few words. */
const MEANINGS: Readonly<Record<string, Meanings>> = {
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

/** The settings of the command line, checked. Throws LPQ_USAGE naming the option. */
export function checkFlags(given: Readonly<Record<string, unknown>>): Settings {
  const parsed = settingsSchema.safeParse(given);
  if (parsed.success) {
    const { bits, dtype } = parsed.data;
    if (bits === undefined || dtype === undefined) return parsed.data as Settings;
    throw new LpqError('LPQ_USAGE', '--bits and --dtype exclude each other', {
      hint: '--bits 4 is short for the integer type of 4 bits; use --dtype for every other type.',
    });
  }
  const field = fieldOf(String(parsed.error.issues[0]?.path[0])) as MethodOption;
  const got = String(given[field.field]);
  const hint = hintFor(got, isWords(field.takes) ? field.takes : [], MEANINGS[field.field]);
  const expected = saysOf(field);
  throw new LpqError('LPQ_USAGE', `${flagOf(field)} does not take '${got}'`, { got, expected, ...(hint && { hint }) });
}

/**
 * Command line before recipe before defaults. Throws LPQ_USAGE when nothing names a type though one is needed (`typed`), or
 * an option has no effect. What a recipe says for another method than the command line's is left out.
 */
export function mergeSettings(flags: Settings, recipe: Settings, typed = true): FullSettings {
  const given: Settings = overrideScheme(recipe, flags);
  const method = methodOf({ method: given.method ?? (METHODS[0]?.name as string) });
  if (typed && given.bits === undefined && given.dtype === undefined)
    throw new LpqError('LPQ_USAGE', 'the type to quantize to is missing', {
      expected: '--bits N or --dtype T',
      hint: 'Use for example --bits 4, --dtype i8 or --dtype f4e2m1.',
    });
  const text = [...CALIBRATION_FIELDS, ...TEXT_FIELDS];
  if (!readsText(method, given))
    refuseText(
      method.name,
      text.find(({ field }) => flags[field] !== undefined),
    );
  const foreign = METHODS_FIELDS.filter((field) => !method.options.includes(field));
  const chosen = flags.method === undefined ? given : flags;
  const idle = foreign.find(({ field }) => chosen[field] !== undefined);
  if (idle)
    throw new LpqError('LPQ_USAGE', `${flagOf(idle)} has no effect with --method ${method.name}`, {
      hint: `Leave the option out, or use ${methodThat(({ options }) => options.includes(idle))}.`,
    });
  const settings = Object.fromEntries(
    FIELDS.filter((field) => !foreign.includes(field)).flatMap(({ field, otherwise }) => {
      const value = given[field] ?? (typeof otherwise === 'function' ? otherwise(given) : otherwise);
      return value === undefined ? [] : [[field, value]];
    }),
  ) as FullSettings;
  requireKv(settings);
  requireRanges(settings);
  requireInputs(settings);
  method.check?.(settings);
  return settings;
}

/** Whether a run reads a calibration text. */
export function readsText(method: Pick<Method, 'needs'>, settings: Settings): boolean {
  const { inputScales, kvScales } = settings;
  return needsOf(method, settings) !== 'weights' || inputScales === true || kvScales === true;
}

/** Throws LPQ_USAGE for scales that the method changes, or that no module uses. */
function requireRanges(settings: FullSettings): void {
  const asked = RANGE_FIELDS.find(({ field }) => settings[field] === true);
  if (!asked) return;
  if (methodOf(settings).codes)
    throw new LpqError('LPQ_USAGE', `${flagOf(asked)} does not go with --method ${settings.method}`, {
      hint: `Use ${methodThat(({ codes }) => !codes)}: this method chooses its own activation codes.`,
    });
  if (settings.inputScales && settings.mtp)
    throw new LpqError('LPQ_USAGE', '--input-scales does not go with --mtp', {
      hint: 'Leave --mtp out: layers of multi-token prediction stay in 16 bits.',
    });
}

/** Throws LPQ_USAGE where what linears read is the method's own choice, or needs a scale that nobody finds. */
function requireInputs({ inputDtype, inputScales, mtp, ...settings }: FullSettings): void {
  if (inputDtype === undefined) return;
  if (methodOf(settings).codes)
    throw new LpqError('LPQ_USAGE', `--input-dtype does not go with --method ${settings.method}`, {
      hint: `Use ${methodThat(({ codes }) => !codes)}: this method chooses its own activation codes.`,
    });
  if (mtp)
    throw new LpqError('LPQ_USAGE', '--input-dtype does not go with --mtp', {
      hint: 'Leave --mtp out: layers of multi-token prediction read 16 bits.',
    });
  if (INPUT_TYPES[inputDtype].calibrated && !inputScales)
    throw new LpqError('LPQ_USAGE', `--input-dtype ${inputDtype} needs a scale for each input`, {
      expected: `--input-dtype ${inputDtype} --input-scales`,
    });
}

/** Throws LPQ_USAGE for an option about a text with a method that takes none. */
function refuseText(method: string, idle: string | MethodOption | undefined): void {
  if (idle === undefined) return;
  const flag = typeof idle === 'string' ? idle : flagOf(idle);
  throw new LpqError('LPQ_USAGE', `${flag} has no effect with --method ${method}, which takes no calibration`, {
    hint: `Leave the option out, or use ${methodThat((each) => needsOf(each) !== 'weights')}.`,
  });
}

/** Throws LPQ_USAGE for options of the cache without --kv. */
export function requireKv({ kv, ...rest }: KvSettings): void {
  const idle = KV_FIELDS.find(({ field }) => rest[field as keyof typeof rest] !== undefined);
  if (kv === undefined && idle)
    throw new LpqError('LPQ_USAGE', `${flagOf(idle)} has no effect without --kv`, {
      hint: 'Give the bits of the KV cache, for example --kv 4.',
    });
}

/** Which options of `lpq quantize` about calibration were given. */
interface CalibrationGiven {
  readonly calib: boolean;
  readonly saveStats: boolean;
  readonly stats: boolean;
}

/**
 * The settings with what saved statistics leave of them: there are no activations. `flags` are those of the command line.
 * Throws LPQ_USAGE naming an option that has no effect.
 */
export function checkCalibration(settings: FullSettings, flags: Settings, given: CalibrationGiven): FullSettings {
  const { calib, saveStats, stats } = given;
  const method = methodOf(settings);
  const { name, options } = method;
  const needs = needsOf(method, settings);
  const ranged = needs === 'weights' && readsText(method, settings);
  const flagged = [!ranged && calib && '--calib', saveStats && '--save-stats', stats && '--stats'] as const;
  const idle = flagged.find((flag) => flag);
  if (needs === 'weights') refuseText(name, idle || undefined);
  if (!stats) return settings;
  const ranges = RANGE_FIELDS.find(({ field }) => settings[field] === true);
  if (ranges)
    throw new LpqError('LPQ_USAGE', `${flagOf(ranges)} needs a calibration text, and --stats has none`, {
      hint: 'Leave one of them out.',
    });
  if (settings.inputDtype !== undefined)
    throw new LpqError('LPQ_USAGE', '--input-dtype needs a calibration text, and --stats has none', {
      hint: 'Leave one of them out.',
    });
  if (needs === 'activations')
    throw new LpqError('LPQ_USAGE', `--method ${name} needs activations, which --stats does not have`, {
      hint: 'Leave --stats out: the method needs a forward pass of the quantized model.',
    });
  if (saveStats) throw new LpqError('LPQ_USAGE', '--save-stats and --stats exclude each other');
  const text = [...CALIBRATION_FIELDS, ...TEXT_FIELDS].find(({ field }) => flags[field] !== undefined);
  const flag = calib ? '--calib' : text && flagOf(text);
  if (flag)
    throw new LpqError('LPQ_USAGE', `${flag} has no effect with --stats, which already has a text`, {
      hint: 'Leave one of them out.',
    });
  const still = options.filter(({ withoutActivations }) => withoutActivations !== undefined);
  for (const option of still) {
    const { field, withoutActivations } = option;
    const got = flags[field];
    if (got !== undefined && got !== withoutActivations)
      throw new LpqError('LPQ_USAGE', `${flagOf(option)} needs activations, which --stats does not have`, {
        got,
        expected: `${withoutActivations}, or no --stats`,
      });
  }
  const left = still.map(({ field, withoutActivations }) => [field, withoutActivations]);
  return { ...settings, ...Object.fromEntries(left) };
}

/** `over` over `base`; a type named in either form (bits, dtype) replaces the other's. */
export function overrideScheme<T extends SchemeSettings, U extends SchemeSettings>(base: T, over: U): T & U {
  const { bits, dtype, ...rest } = base;
  const named = over.bits !== undefined || over.dtype !== undefined;
  const type = { ...(bits !== undefined && { bits }), ...(dtype !== undefined && { dtype }) };
  return { ...rest, ...(named ? {} : type), ...over } as T & U;
}
