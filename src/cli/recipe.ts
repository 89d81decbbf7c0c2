import { readFileSync } from 'node:fs';
import { z } from 'zod';
import { LpqError } from '../core/error.js';
import { fieldTakes, type SchemeSettings, type Settings, schemeSettings, settingsSchema } from './settings.js';

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
}

const ruleSchema = z.strictObject({
  match: z.string().min(1),
  skip: z.literal(true).optional(),
  ...schemeSettings.shape,
});

const recipeSchema = z.strictObject({
  rules: z.array(ruleSchema).default([]),
  ...settingsSchema.shape,
});

/**
 * Reads a recipe: JSON with any setting of `lpq quantize` (bits, groupSize, method, ...) and
 * {"rules": [{"match": REGEX, "skip": true} | {"match": REGEX, "bits": 8, ...}]}. A regular expression may match
 * anywhere in a module's path. Throws LPQ_FILE, and LPQ_RECIPE naming the place in the file.
 */
export function readRecipe(file: string): Recipe {
  let text: string;
  try {
    text = readFileSync(file, 'utf8');
  } catch (cause) {
    throw new LpqError('LPQ_FILE', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw bad(file, '', `is not valid JSON: ${(cause as Error).message}`, { cause });
  }
  return parseRecipe(file, value);
}

/** The same for a value that was read already; `file` is for messages. */
export function parseRecipe(file: string, value: unknown): Recipe {
  const parsed = recipeSchema.safeParse(value);
  if (!parsed.success) throw malformed(file, value, parsed.error.issues[0] as z.core.$ZodIssue);
  const { rules, ...settings } = parsed.data;
  bothTypes(file, '', settings);
  return {
    settings,
    rules: rules.map(({ match, skip, ...scheme }, i) => {
      const place = `/rules/${i}`;
      if (skip && Object.keys(scheme).length > 0)
        throw bad(file, place, 'both skips its modules and says how to store them', {
          got: Object.keys(scheme).join(', '),
        });
      if (!skip && Object.keys(scheme).length === 0)
        throw bad(file, place, 'says nothing', {
          expected: `"skip": true, or one of ${Object.keys(schemeSettings.shape).join(', ')}`,
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
  const takes = fieldTakes(String(issue.path.at(-1)));
  return bad(file, place, takes ? 'has a value it does not take' : issue.message, {
    got: JSON.stringify(got) ?? 'nothing',
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
