import { z } from 'zod';
import { calibrationSchema, sha256Schema } from '../canonical/schema.js';

/** `lpq.json` of saved calibration statistics (format lpq-statistics); spec.md says what the tensors hold. */
export const statisticsSchema = z.strictObject({
  format: z.literal('lpq-statistics'),
  version: z.literal(1),
  /** Version that took them. */
  lpq: z.string(),
  /** The unquantized model; fingerprint: safetensors/spec.md. */
  model: z.strictObject({ name: z.string(), fingerprint: sha256Schema }),
  calibration: z.strictObject({
    ...calibrationSchema.shape,
    /** Most tokens of a sequence. */
    length: z.int().positive(),
    /** Of the token ids that the model was fed. */
    tokensSha256: sha256Schema,
  }),
  /** cpu, cuda, or cuda xN: sums are added in another order on each. */
  backend: z.string(),
  /** Number format of the products that the model was run with, where it is not f32 (--products). */
  products: z.literal('bf16').optional(),
  /** Of how many parts of the calibration text, each summed by itself (--shard), the sums were added; absent: of one. */
  parts: z.int().min(2).optional(),
  /** Tensor files, beside this one. */
  files: z.array(z.string().regex(/^[\w.-]+\.safetensors$/)).min(1),
  /** By the name of their tensor: what linears read. */
  feeds: z.record(
    z.string(),
    z.strictObject({
      /** Module paths of all linears that read this activation. */
      linears: z.array(z.string()).min(1),
      k: z.int().positive(),
      /** Rows summed: the calibration tokens; of an expert those that were sent to it, possibly 0. */
      rows: z.int().nonnegative(),
      sha256: sha256Schema,
    }),
  ),
});
export type StatisticsManifest = z.infer<typeof statisticsSchema>;
export type SavedFeed = StatisticsManifest['feeds'][string];

/** Elements of a lower triangle with its diagonal. */
export function triangle(k: number): number {
  return (k * (k + 1)) / 2;
}
