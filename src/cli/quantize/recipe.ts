import path from 'node:path';
import { parse } from 'yaml';
import { z } from 'zod';
import { readRegularText } from '../../../formats/directory/read-file.js';
import { bounded } from '../../core/bounded.js';
import { LpqError } from '../../core/error.js';
import { printed } from '../../core/printed.js';
import { saysOf } from '../../quantize/option.js';
import { fieldOf } from './fields.js';
import { type SchemeSettings, type Settings, schemeShape, settingsShape } from './settings.js';

/** Seconds for YAML, whose reader compares each key with all others. */
const PARSING = 60;

/** What to do with the modules whose path matches: leave them as they are, or store them otherwise. */
export interface RecipeRule {
  /** File and path inside it, for messages. */
  readonly place: string;
  readonly match: RegExp;
  readonly skip: boolean;
  readonly scheme: SchemeSettings;
}

export interface Recipe {
  readonly settings: Settings;
  /** The first rule that matches a module decides. */
  readonly rules: readonly RecipeRule[];
  /** As --calib and --stats take them; paths are relative to the recipe's directory. */
  readonly calib?: readonly string[];
  readonly stats?: string;
}

const ruleSchema = z.strictObject({
  match: z.string().min(1),
  skip: z.literal(true).optional(),
  ...schemeShape,
});

export const recipeSchema = z.strictObject({
  ...settingsShape,
  calib: z.array(z.string().min(1)).optional(),
  stats: z.string().min(1).optional(),
  rules: z.array(ruleSchema).default([]),
});
export type RecipeFile = z.input<typeof recipeSchema>;

/**
 * Reads a recipe: YAML, or JSON where the file ends in .json, with any setting of `lpq quantize` (bits, groupSize, method, ...) and
 * {"rules": [{"match": REGEX, "skip": true} | {"match": REGEX, "bits": 8, ...}]}. A regular expression may match
 * anywhere in a module's path. Throws LPQ_FILE, and LPQ_RECIPE naming the place in the file.
 */
export function readRecipe(file: string): Recipe {
  let text: string;
  try {
    text = readRegularText(file);
  } catch (cause) {
    throw new LpqError('LPQ_FILE', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
  const json = file.endsWith('.json');
  let value: unknown;
  try {
    // Aliases may not multiply: a few lines of them can stand for gigabytes.
    value = json
      ? JSON.parse(text)
      : bounded(
          PARSING,
          () => parse(text, { maxAliasCount: 100, merge: false }),
          () => new Error('it takes too long to read'),
        );
  } catch (cause) {
    throw bad(file, '', `is not valid ${json ? 'JSON' : 'YAML'}: ${(cause as Error).message}`, { cause });
  }
  return parseRecipe(file, value);
}

/** The same for a value that was read already; `file` is for messages. */
export function parseRecipe(file: string, value: unknown): Recipe {
  const parsed = recipeSchema.safeParse(value);
  if (!parsed.success) throw malformed(file, value, parsed.error.issues[0] as z.core.$ZodIssue);
  const { rules, calib, stats, ...settings } = parsed.data;
  const near = (given: string) => path.resolve(path.dirname(file), given);
  bothTypes(file, '', settings);
  return {
    settings,
    ...(calib && { calib: calib.map(near) }),
    ...(stats !== undefined && { stats: near(stats) }),
    rules: rules.map(({ match, skip, ...scheme }, i) => {
      const place = `/rules/${i}`;
      if (skip && Object.keys(scheme).length > 0)
        throw bad(file, place, 'both skips its modules and says how to store them', {
          got: Object.keys(scheme).join(', '),
        });
      if (!skip && Object.keys(scheme).length === 0)
        throw bad(file, place, 'says nothing', {
          expected: `"skip": true, or one of ${Object.keys(schemeShape).join(', ')}`,
        });
      bothTypes(file, place, scheme);
      return { place: `${file} at ${place}`, match: regex(file, `${place}/match`, match), skip: skip === true, scheme };
    }),
  };
}

function malformed(file: string, value: unknown, issue: z.core.$ZodIssue): LpqError {
  const place = issue.path.map((key) => `/${String(key)}`).join('');
  if (issue.code === 'unrecognized_keys') {
    const known = place.startsWith('/rules/') ? Object.keys(ruleSchema.shape) : Object.keys(recipeSchema.shape);
    return bad(file, `${place}/${issue.keys[0]}`, 'is no setting', { expected: known.join(', ') });
  }
  const got = issue.path.reduce<unknown>(
    (here, key) => (here as Record<PropertyKey, unknown> | undefined)?.[key],
    value,
  );
  const field = fieldOf(String(issue.path.at(-1)));
  const takes = field && saysOf(field);
  return bad(file, place, takes ? 'has an invalid value' : issue.message, {
    got: printed(got),
    ...(takes && { expected: takes }),
  });
}

function bothTypes(file: string, place: string, scheme: SchemeSettings): void {
  if (scheme.bits !== undefined && scheme.dtype !== undefined)
    throw bad(file, place, 'sets both bits and dtype', { hint: 'bits names an integer type; leave one of them out.' });
}

function regex(file: string, place: string, source: string): RegExp {
  try {
    return new RegExp(source);
  } catch (cause) {
    throw bad(file, place, 'is not a regular expression', { got: source, cause });
  }
}

function bad(
  file: string,
  place: string,
  what: string,
  facts: ConstructorParameters<typeof LpqError>[2] = {},
): LpqError {
  return new LpqError('LPQ_RECIPE', `${file}${place ? ` at ${place}` : ''} ${what}`, facts);
}
