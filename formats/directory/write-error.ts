import { LpqError } from '../../src/core/error.js';
import { reasonOf } from './reasons.js';

/**
 * The designed error for a failed write: LPQ_DISK_FULL when there is no room (or quota), LPQ_OUTPUT_WRITE for what else
 * the system may say, LPQ_INTERNAL for what is no system error at all.
 */
export function writeError(path: string, cause: unknown): LpqError {
  if (cause instanceof LpqError) return cause;
  const { code, message } = cause as NodeJS.ErrnoException;
  if (code === 'ENOSPC' || code === 'EDQUOT')
    return new LpqError('LPQ_DISK_FULL', `${path} could not be written: the disk is full`, {
      cause,
      hint: 'Free some space, or choose an output directory on another disk.',
    });
  if (!/^E[A-Z0-9]+$/.test(String(code)))
    return new LpqError('LPQ_INTERNAL', `${path} could not be written: ${message}`, { cause });
  return new LpqError(
    'LPQ_OUTPUT_WRITE',
    `${path} could not be written: ${code === 'ENOENT' ? 'its file system accepts no new files there' : reasonOf(cause)}`,
    {
      cause,
    },
  );
}
