import type { OutputDirectory } from '../../../formats/directory/output-directory.js';
import type { Run } from '../run.js';

/** An output that has begun: it is cleaned up when the process ends by force, and what killed runs had left of it is named. */
export function registerOutput(output: OutputDirectory, run: Run): void {
  run.interrupt.cleanup(() => output.abortSync());
  for (const place of output.cleared)
    run.report.warn(`removed ${place}, the remains of a killed run`, { removed: place });
}
