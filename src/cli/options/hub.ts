import { existsSync } from 'node:fs';
import { LpqError } from '../../core/error.js';
import type { ModelName } from '../../hub/name.js';
import type { Snapshot, SnapshotOptions } from '../../hub/snapshot.js';
import type { Run } from '../run.js';
import { bytes } from '../terminal/units.js';
import { version } from '../version.js';

/** How a command tells what a download does. */
export interface Telling {
  /** Whether its --json is a stream of events; other commands print one line. */
  readonly events: boolean;
}

/**
 * The directory of a model that was given as a directory or, where there is none, as ORG/NAME[@REVISION] of the Hugging Face
 * Hub, which is downloaded first. A path that cannot be such a name is returned as it is.
 * Throws what hubSnapshot throws.
 */
export async function modelDirectory(given: string, run: Run, telling: Telling = { events: false }): Promise<string> {
  const { ggufDirectory, ggufFiles } = await import('../../../formats/gguf/source/directory.js');
  const gguf = ggufFiles(given);
  if (gguf) {
    const { dir, notes } = ggufDirectory(gguf);
    run.report.standsFor(dir, given);
    for (const note of notes) run.report.warn(note);
    return dir;
  }
  if (existsSync(given)) return given;
  const { parseModelName } = await import('../../hub/name.js');
  const model = parseModelName(given);
  return model === undefined ? given : (await downloaded(given, model, run, telling)).dir;
}

/** The model's directory in the cache, once what is missing has been downloaded; without the weights with `weights: false`. */
export async function downloaded(
  given: string,
  model: ModelName,
  run: Run,
  telling: Telling,
  more: Pick<SnapshotOptions, 'weights'> = {},
): Promise<Snapshot> {
  const { printModelName } = await import('../../hub/name.js');
  const { hubSnapshot } = await import('../../hub/snapshot.js');
  const { report, interrupt } = run;
  const tells = telling.events || !report.options.json;
  let task: ReturnType<typeof report.task> | undefined;
  const snapshot = await hubSnapshot(model, {
    ...more,
    signal: interrupt.signal,
    userAgent: userAgent(),
    onPlan: (plan) => {
      const text = `downloading ${plan.files} files of ${printModelName(model)} (${plan.commit.slice(0, 12)}), ${bytes(plan.bytes)}`;
      if (tells) report.event('download', plan, text);
      task = report.task('download', plan.bytes, telling.events);
    },
    onProgress: (done, file) => task?.update(done, file),
    onWarning: (message) => report.warn(message),
  }).catch((error: unknown) => {
    throw alsoNoDirectory(error, given);
  });
  task?.end();
  const { dir, commit, downloaded: moved } = snapshot;
  if (tells && telling.events)
    report.event(
      'model',
      { id: model.id, revision: model.revision, dir, commit, downloaded: moved },
      `${printModelName(model)} is in ${dir}`,
    );
  return snapshot;
}

export function userAgent(): string {
  return `lpq/${version()}; node/${process.versions.node}`;
}

/** Whoever mistyped a path learns that it was taken for a name. */
function alsoNoDirectory(error: unknown, given: string): unknown {
  if (!(error instanceof LpqError)) return error;
  if (!['LPQ_HUB_ACCESS', 'LPQ_HUB_NOT_FOUND', 'LPQ_HUB_OFFLINE', 'LPQ_HUB_UNREACHABLE'].includes(error.code))
    return error;
  return new LpqError(error.code, `${error.message}; there is no directory ${given}`, {
    got: error.got,
    expected: error.expected,
    ...(error.hint !== undefined && { hint: error.hint }),
    cause: error.cause,
  });
}
