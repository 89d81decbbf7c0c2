import { existsSync } from 'node:fs';
import { readRegularText } from '../../formats/directory/read-file.js';
import { withoutBareFloats } from '../../formats/safetensors/python-floats.js';
import { LpqError } from '../core/error.js';

/** The object of a JSON file that a model may have; undefined where there is no such file. Throws LPQ_CONFIG. */
export function readObject(file: string): Record<string, unknown> | undefined {
  if (!existsSync(file)) return undefined;
  let value: unknown;
  try {
    value = JSON.parse(withoutBareFloats(readText(file)));
  } catch (cause) {
    if (cause instanceof LpqError) throw cause;
    throw new LpqError('LPQ_CONFIG', `${file} is not valid JSON: ${(cause as Error).message}`, { cause });
  }
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value as Record<string, unknown>;
  throw new LpqError('LPQ_CONFIG', `${file} does not hold an object`);
}

/** Throws LPQ_CONFIG. */
export function readText(file: string): string {
  try {
    return readRegularText(file);
  } catch (cause) {
    throw new LpqError('LPQ_CONFIG', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
}
