import { existsSync } from 'node:fs';
import path from 'node:path';
import { readRegularText } from '../../formats/directory/read-file.js';
import { LpqError } from '../core/error.js';

/** The tokens that end a text: eos_token_id of generation_config.json, else of config.json; a number or a list. Throws LPQ_CONFIG. */
export function stopTokens(dir: string, config: Readonly<Record<string, unknown>>): ReadonlySet<number> {
  const file = path.join(dir, 'generation_config.json');
  const own = existsSync(file) ? objectOf(file).eos_token_id : undefined;
  const text = config.text_config as Record<string, unknown> | undefined;
  const found = own ?? config.eos_token_id ?? text?.eos_token_id ?? [];
  const ids: unknown[] = Array.isArray(found) ? found : [found];
  const wrong = ids.find((id) => !Number.isSafeInteger(id) || (id as number) < 0);
  if (wrong !== undefined)
    throw new LpqError('LPQ_CONFIG', `'eos_token_id' of ${own === undefined ? dir : file} is not a token`, {
      got: wrong,
      expected: 'a token id, or a list of them',
    });
  return new Set(ids as number[]);
}

function objectOf(file: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(readRegularText(file));
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  } catch (cause) {
    throw new LpqError('LPQ_CONFIG', `${file} is not valid JSON: ${(cause as Error).message}`, { cause });
  }
  throw new LpqError('LPQ_CONFIG', `${file} does not hold an object`);
}
