import { closeSync, constants, fstatSync, openSync, readFileSync, type Stats } from 'node:fs';
import type { ErrorCode } from '../../src/core/codes.js';
import { type ErrorFacts, LpqError } from '../../src/core/error.js';
import { reasonOf } from './reasons.js';

/**
 * The contents of a regular file that was named or belongs to a checkpoint. A named pipe would be waited for without an end, so what is
 * no file is refused. Throws an error whose message is the reason alone ('it does not exist'), for whoever names the file.
 */
export function readRegular(file: string): Buffer {
  try {
    const fd = openSync(file, constants.O_RDONLY | constants.O_NONBLOCK);
    try {
      const facts = fstatSync(fd);
      if (!facts.isFile()) throw new Error(`it is ${kindOf(facts)}`);
      return readFileSync(fd);
    } finally {
      closeSync(fd);
    }
  } catch (cause) {
    // Not as a cause: it would say the same once more, in the system's words.
    throw Object.assign(new Error(reasonOf(cause)), { code: (cause as NodeJS.ErrnoException).code });
  }
}

/** The same as UTF-8. */
export const readRegularText = (file: string): string => readRegular(file).toString('utf8');

/** A file of JSON. Throws LPQ_FILE where it cannot be read, `malformed` where it is none. */
export function readJson(file: string, malformed: ErrorCode, facts: ErrorFacts = {}): unknown {
  let text: string;
  try {
    text = readRegularText(file);
  } catch (cause) {
    throw new LpqError('LPQ_FILE', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new LpqError(malformed, `${file} is not valid JSON: ${(cause as Error).message}`, { cause, ...facts });
  }
}

function kindOf(facts: Stats): string {
  if (facts.isDirectory()) return 'a directory';
  return facts.isFIFO() ? 'a pipe; write it to a file first' : 'no regular file';
}
