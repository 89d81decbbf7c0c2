import { LpqError } from '../core/error.js';
import type { HubEnvironment } from './environment.js';
import { type ModelName, printModelName } from './name.js';

/** Without a network, and without all of the model. */
export function offline(model: ModelName, { cache }: HubEnvironment, missing: readonly string[] | undefined): LpqError {
  const name = printModelName(model);
  const more = missing && missing.length > 3 ? `, and ${missing.length - 3} more` : '';
  return new LpqError(
    'LPQ_HUB_OFFLINE',
    missing
      ? `HF_HUB_OFFLINE is set, and ${cache} holds only a part of ${name}`
      : `HF_HUB_OFFLINE is set, and ${cache} does not hold ${name}`,
    {
      ...(missing && { got: `without ${missing.slice(0, 3).join(', ')}${more}` }),
      hint: 'Run once with HF_HUB_OFFLINE=0 and a network; or set HF_HUB_CACHE or HF_HOME to the directory of the model.',
    },
  );
}

/** A failure of the cache's disk; what else was thrown is returned as it is. */
export function diskError({ cache }: HubEnvironment, cause: unknown): unknown {
  const { code, syscall, path, message } = cause as NodeJS.ErrnoException;
  if (syscall === undefined) return cause;
  const full = code === 'ENOSPC' || code === 'EDQUOT';
  const reason = full ? 'the disk is full' : message;
  return new LpqError(full ? 'LPQ_DISK_FULL' : 'LPQ_OUTPUT_WRITE', `${path ?? cache} could not be written: ${reason}`, {
    cause,
    hint: full
      ? 'Free some space and run the command again, which continues the download; or set HF_HUB_CACHE.'
      : 'Check the permissions of the cache, or set HF_HUB_CACHE to a writable directory.',
  });
}
