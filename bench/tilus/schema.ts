import { z } from 'zod';
import { benchSchema, count, positive } from '../record.js';

const settingsSchema = z.record(z.string(), z.union([z.number(), z.string()]));

/** One product by a program, beside what else computes it in the same run. */
const rowSchema = z.strictObject({
  type: z.string(),
  k: count,
  n: count,
  m: count,
  /** The fastest configuration of the program: median microseconds, and the least. */
  us: positive,
  leastUs: positive,
  settings: settingsSchema,
  timed: count,
  /** The fastest when all were timed, before they ran beside others. */
  fastest: z.array(z.strictObject({ us: positive, settings: settingsSchema })),
  /** Hand-written kernels: the portable one, and the library's choice; null where there is none. */
  portableUs: positive.nullable(),
  choiceUs: positive.nullable(),
  /** On unpacked weights. */
  cublasUs: positive.nullable(),
});
export type ProgramRow = z.infer<typeof rowSchema>;

export const programBenchSchema = benchSchema('lpq-program-bench', {
  program: z.string(),
  settings: z.strictObject({ group: z.union([z.literal('channel'), count]), passes: count }),
  rows: z.array(rowSchema),
  /** Of every weight: configurations that were compiled, those refused, and the seconds that it took. */
  tuning: z.array(
    z.strictObject({
      type: z.string(),
      k: count,
      n: count,
      compiled: count,
      refused: z.int().nonnegative(),
      jobs: count,
      checkSeconds: z.number(),
      compileSeconds: z.number(),
      timeSeconds: z.number(),
    }),
  ),
});
export type ProgramBench = z.infer<typeof programBenchSchema>;
