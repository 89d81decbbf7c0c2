import { CommanderError } from 'commander';
import { reasonOf } from '../../../formats/directory/reasons.js';
import { LpqError } from '../../core/error.js';
import type { Meanings } from '../../core/names.js';
import { cudaError } from './cuda-failure.js';

/** Codes that native code throws (native/include/lpq/failure.h) and what they are to a user. */
const NATIVE = {
  LPQ_NATIVE_MEMORY: { code: 'LPQ_MEMORY', what: 'there is not enough memory' },
  LPQ_NATIVE_NUMERICS: { code: 'LPQ_MODULE_NUMERICS', what: 'a computation produced NaN or infinity' },
  LPQ_NATIVE_FILE: { code: 'LPQ_FILE', what: 'a file could not be read' },
} as const;

/** Calls that only fail when something is being written. */
const WRITING = new Set([
  'mkdir',
  'mkdtemp',
  'rename',
  'write',
  'fsync',
  'ftruncate',
  'copyfile',
  'unlink',
  'rmdir',
  'link',
]);

interface CodedError extends Error {
  code?: string;
  /** Node: the system call and its path. */
  syscall?: string;
  path?: string;
  /** Native: the operation. */
  op?: string;
}

/** Whatever was thrown, as the error that the user sees. What lpq did not foresee becomes LPQ_INTERNAL. */
export function asLpqError(thrown: unknown): LpqError {
  if (thrown instanceof LpqError) return thrown;
  if (thrown instanceof CommanderError) return usageError(thrown);
  if (!(thrown instanceof Error)) return internal(String(thrown), thrown);
  const error = thrown as CodedError;
  const code = error.code ?? '';
  if (code === 'LPQ_ABORTED') return aborted(error);
  if (code.startsWith('LPQ_CUDA') || code === 'LPQ_HOST_MEMORY') return cudaError(code, error);
  if (code.startsWith('LPQ_NATIVE') || code === 'LPQ_ISA') return nativeError(code, error);
  if (code === 'ERR_MEMORY_ALLOCATION_FAILED' || code === 'ENOMEM' || /array buffer allocation/i.test(error.message))
    return new LpqError('LPQ_MEMORY', 'there is not enough memory', { cause: error, hint: MEMORY_HINT });
  if (error.syscall !== undefined) return systemError(code, error);
  return internal(error.message, error);
}

/** The error of a run that was interrupted. */
export function aborted(cause?: unknown): LpqError {
  return new LpqError('LPQ_ABORTED', 'the run was interrupted', { cause });
}

const MEMORY_HINT = 'Close other programs, or use fewer or shorter calibration sequences (--samples, --seq-len).';

function nativeError(code: string, error: CodedError): LpqError {
  const known = NATIVE[code as keyof typeof NATIVE];
  const where = error.op ? ` in the native operation ${error.op}` : '';
  if (!known) return internal(`${error.message}${where} (${code})`, error);
  return new LpqError(known.code, `${known.what}${where}: ${error.message}`, {
    cause: error,
    ...(known.code === 'LPQ_MEMORY' && { hint: MEMORY_HINT }),
  });
}

function systemError(code: string, error: CodedError): LpqError {
  if (code === 'ENOSPC' || code === 'EDQUOT')
    return new LpqError('LPQ_DISK_FULL', `${error.path ?? 'the output'} could not be written: the disk is full`, {
      cause: error,
      hint: 'Free some space, or choose an output directory on another disk.',
    });
  const writing = code === 'EROFS' || WRITING.has(error.syscall ?? '');
  const place = error.path ?? 'a file';
  return new LpqError(
    writing ? 'LPQ_OUTPUT_WRITE' : 'LPQ_FILE',
    `${place} cannot be ${writing ? 'written' : 'read'}: ${reasonOf(error)}`,
    { cause: error },
  );
}

/** Options of other commands and other tools, by what they are here. */
const OPTIONS: Meanings = {
  '--target':
    'For an engine, use --for NAME; for a target, lpq pack QUANTIZED --target NAME, or lpq quantize ... --pack NAME.',
  '--wbits': 'Use --bits.',
  '--w_bit': 'Use --bits.',
  '--groupsize': 'Use --group-size.',
  '--model': 'The model is an argument, not an option: lpq COMMAND MODEL.',
  '--dataset': 'Use --calib FILE.',
  '--format': 'Use lpq pack --target NAME.',
};

/** commander's sentence, without its prefix; its suggestion becomes the hint. */
function usageError(error: CommanderError): LpqError {
  const [first = '', ...rest] = error.message.replace(/^error: /, '').split('\n');
  const option = /unknown option '(--[\w-]+)/.exec(first)?.[1] ?? '';
  const suggestion = /\(Did you mean (.+)\?\)/.exec(rest.join(' '))?.[1];
  return new LpqError('LPQ_USAGE', first, {
    hint: Object.hasOwn(OPTIONS, option)
      ? (OPTIONS[option] as string)
      : suggestion
        ? `Did you mean ${suggestion}?`
        : 'lpq --help lists the commands, lpq COMMAND --help its options.',
  });
}

function internal(message: string, cause: unknown): LpqError {
  return new LpqError('LPQ_INTERNAL', message, {
    cause,
    hint: 'This is a defect in lpq: please report it with the output of the same command and --verbose.',
  });
}
