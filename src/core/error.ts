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
