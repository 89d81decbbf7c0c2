import type { OutputDirectory } from '../../../formats/directory/output-directory.js';
import { LpqError } from '../../core/error.js';
import { asLpqError } from '../terminal/failure.js';

/** Errors of what the user gave, which say what to do about --resume themselves. */
const REFUSED = new Set(['LPQ_RESUME', 'LPQ_JOURNAL', 'LPQ_PARTIAL_EXISTS', 'LPQ_PARTIAL_IN_USE', 'LPQ_OUTPUT_EXISTS']);

/** The error of a run that stopped, with what it has left and how to go on from there. */
export function resumable(thrown: unknown, output: OutputDirectory | undefined): LpqError {
  const error = asLpqError(thrown);
  if (!output?.keep || REFUSED.has(error.code)) return error;
  const { code, message, got, expected, hint, cause } = error;
  const resume = `The finished blocks stay in ${output.root}: repeat the command with --resume to continue, or with --restart to discard them.`;
  return new LpqError(code, message, { got, expected, cause, hint: hint === undefined ? resume : `${hint} ${resume}` });
}
