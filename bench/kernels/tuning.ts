import { mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { z } from 'zod';
import { readJson } from '../../formats/directory/read-file.js';
import { writeError } from '../../formats/directory/write-error.js';
import { LpqError } from '../../src/core/error.js';
import { count, positive } from '../record.js';
import { type KernelBench, variantSchema } from './schema.js';
import { TOLERANCE } from './tune.js';

/** A product, what the planners' choice takes and what the best setting, and that setting ({}: the choice itself). */
const tuningPointSchema = z.strictObject({
  layout: z.string(),
  type: z.string(),
  activations: z.enum(['f16', 'bf16']),
  group: z.union([z.literal(32), z.literal(64), z.literal(128), z.literal('channel')]),
  /** Of groups. */
  zeros: z.enum(['none', 'u8', 'f16', 'i32']),
  k: count,
  n: count,
  m: count,
  choiceUs: positive,
  bestUs: positive,
  best: variantSchema,
});
export type TuningPoint = z.infer<typeof tuningPointSchema>;

/**
 * What `lpq bench kernels --tune` keeps for one device, driver and version of lpq; native/cuda/gemm/tuning.h says where,
 * and reads it when a product is launched.
 */
const tuningSchema = z.strictObject({
  format: z.literal('lpq-kernel-tuning'),
  version: z.literal(1),
  device: z.string(),
  /** CUDA version that the driver speaks: 12080. */
  driver: z.int(),
  lpq: z.string(),
  date: z.iso.date(),
  points: z.array(tuningPointSchema),
});
export type KernelTuning = z.infer<typeof tuningSchema>;

/** What a tuning must be of to count. */
export type TuningKey = Pick<KernelTuning, 'device' | 'driver' | 'lpq'>;

/** The tuned points of a measurement. */
export function tuningOf(bench: KernelBench, key: TuningKey): KernelTuning {
  const points = (bench.tuning?.points ?? []).map(
    ({ type, k, n, m, choiceUs, bestUs, best }): TuningPoint => ({
      layout: 'tilus',
      type,
      activations: bench.settings.dtype,
      group: bench.settings.group,
      zeros: 'none',
      k,
      n,
      m,
      choiceUs,
      bestUs,
      best,
    }),
  );
  return { format: 'lpq-kernel-tuning', version: 1, ...key, date: bench.date, points };
}

/** Both, the second's points in the place of the first's for the same product. */
export function mergeTunings(old: KernelTuning | undefined, fresh: KernelTuning): KernelTuning {
  const name = ({ layout, type, activations, group, zeros, k, n, m }: TuningPoint) =>
    [layout, type, activations, group, zeros, k, n, m].join(' ');
  const points = new Map([...(old?.points ?? []), ...fresh.points].map((point) => [name(point), point]));
  return { ...fresh, points: [...points.values()] };
}

/** Points where the planners' choice takes more than 5 % longer than the best setting, worst first. */
export function losses(points: readonly TuningPoint[]): (TuningPoint & { readonly ratio: number })[] {
  return points
    .map((point) => ({ ...point, ratio: point.choiceUs / point.bestUs }))
    .filter(({ ratio }) => ratio > TOLERANCE)
    .sort((a, b) => b.ratio - a.ratio);
}

/** Reads a tuning. Throws LPQ_KERNEL_TUNING when it is malformed, or of another device, driver or version than `key`. */
export function readTuning(file: string, key?: TuningKey): KernelTuning {
  const { success, data, error } = tuningSchema.safeParse(readJson(file, 'LPQ_KERNEL_TUNING'));
  if (!success) {
    const [issue] = error.issues;
    throw new LpqError('LPQ_KERNEL_TUNING', `${file} holds no tuning of kernels: ${issue?.message}`, {
      got: `at ${issue?.path.join('.') || 'the top'}`,
      expected: 'what lpq bench kernels --tune --export writes',
      cause: error,
    });
  }
  for (const name of ['device', 'driver', 'lpq'] as const)
    if (key && data[name] !== key[name])
      throw new LpqError('LPQ_KERNEL_TUNING', `${file} was measured with another ${name}`, {
        got: data[name],
        expected: key[name],
        hint: 'Times of one device, driver and version do not transfer to another: tune there.',
      });
  return data;
}

/** Writes a tuning whole or not at all, over one that is there. Throws LPQ_OUTPUT_WRITE. */
export function writeTuning(file: string, tuning: KernelTuning): void {
  const part = `${file}.${process.pid}.part`;
  try {
    mkdirSync(path.dirname(file), { recursive: true });
    writeFileSync(part, `${JSON.stringify(tuning, null, 1)}\n`);
    renameSync(part, file);
  } catch (cause) {
    rmSync(part, { force: true });
    throw writeError(file, cause);
  }
}
