import { LpqError } from '../../src/core/error.js';
import { readRegularText } from '../directory/read-file.js';
import { type Report, reportSchema } from './schema.js';

/** A report, checked. Throws LPQ_FILE, and LPQ_REPORT naming the place in the file. */
export function readReport(file: string): Report {
  let text: string;
  try {
    text = readRegularText(file);
  } catch (cause) {
    throw new LpqError('LPQ_FILE', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw malformed(file, 'is not valid JSON', (cause as Error).message, cause);
  }
  const parsed = reportSchema.safeParse(value);
  if (parsed.success) return parsed.data;
  const [issue] = parsed.error.issues;
  const place = issue?.path.map((key) => `/${String(key)}`).join('') || '/';
  throw malformed(file, `at ${place} is not what a report holds`, issue?.message ?? '', parsed.error);
}

function malformed(file: string, what: string, got: string, cause: unknown): LpqError {
  return new LpqError('LPQ_REPORT', `${file} ${what}`, {
    got,
    expected: 'a report of lpq (share/schemas/report.schema.json)',
    hint: 'Make it anew from the quantized directory: lpq report DIR.',
    cause,
  });
}
