import { CODES, type ErrorCode } from './codes.js';

export interface ErrorFacts {
  /** What was found, as the user would write it. */
  got?: unknown;
  /** What would have been accepted. */
  expected?: unknown;
  /** One imperative sentence: what to do now. */
  hint?: string;
  cause?: unknown;
}

/**
 * Exit codes of the command line: 0 fine and told, 1 verification failed, 2 usage, 3 environment, 4 bad input, 130 interrupted,
 * 141 stdout or stderr was closed (128 + SIGPIPE, as of any program in a pipe).
 */
export type ExitCode = 0 | 1 | 2 | 3 | 4 | 130 | 141;

/** LPQ_USAGE of an option that does not take what it was given; `of`: where it would depend on something. */
export function notTaken(
  option: string,
  got: unknown,
  expected: string,
  { of, hint }: { of?: string; hint?: string } = {},
): LpqError {
  const shown = typeof got === 'string' ? `'${got}'` : got;
  const sentence = `${option} does not take ${shown}${of === undefined ? '' : ` for ${of}`}`;
  return new LpqError('LPQ_USAGE', sentence, { got, expected, ...(hint !== undefined && { hint }) });
}

/** The option's value where it is one of `values`. Throws LPQ_USAGE. */
export function oneOf<T extends string>(option: string, values: readonly T[], text: string): T {
  const found = values.find((value) => value === text);
  if (found !== undefined) return found;
  throw notTaken(option, text, `${values.slice(0, -1).join(', ')} or ${values.at(-1)}`);
}

/** The only error lpq means a user to see: a code, one sentence that names the tensor, file or option, and facts. */
export class LpqError extends Error {
  readonly code: ErrorCode;
  readonly got: unknown;
  readonly expected: unknown;
  readonly hint: string | undefined;

  constructor(code: ErrorCode, message: string, facts: ErrorFacts = {}) {
    super(message, facts.cause === undefined ? undefined : { cause: facts.cause });
    this.name = 'LpqError';
    this.code = code;
    this.got = facts.got;
    this.expected = facts.expected;
    this.hint = facts.hint;
  }

  get exitCode(): ExitCode {
    return CODES[this.code].exit;
  }
}
