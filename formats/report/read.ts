import { LpqError } from '../../src/core/error.js';
import { readJson } from '../directory/read-file.js';
import { type Report, reportSchema } from './schema.js';

const REMEDY = {
  expected: 'a report of lpq (share/schemas/report.schema.json)',
  hint: 'Make it again from the quantized directory: lpq report DIR.',
};

/** A report, checked. Throws LPQ_FILE, and LPQ_REPORT naming the place in the file. */
export function readReport(file: string): Report {
  const { data, error } = reportSchema.safeParse(readJson(file, 'LPQ_REPORT', REMEDY));
  if (data) return data;
  const [issue] = error.issues;
  const place = issue?.path.map((key) => `/${String(key)}`).join('') || '/';
  throw new LpqError('LPQ_REPORT', `${file} is not a valid report at ${place}`, {
    ...REMEDY,
    got: issue?.message ?? '',
    cause: error,
  });
}
