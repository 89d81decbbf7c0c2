import { createRuntime } from '../../../native/binding.js';
import type { Case } from '../cases.js';
import { packCase } from '../packed.js';

// A packer's process, run from the copy of dist that a mutant is in: node job.js JOBS. JOBS is JSON of what to pack, each with
// the quantized checkpoint and the place of the artifact. A line of JSON a job tells how it ended.

export interface Job {
  readonly each: Case;
  readonly quantized: string;
  readonly output: string;
}

const runtime = createRuntime(1);
for (const { each, quantized, output } of JSON.parse(process.argv[2] as string) as Job[]) {
  let error: string | null = null;
  try {
    await packCase(each, quantized, output, runtime);
  } catch (cause) {
    error = String((cause as Error).message).split('\n')[0] as string;
  }
  process.stdout.write(`${JSON.stringify({ error })}\n`);
}
