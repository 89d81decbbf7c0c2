import { z } from 'zod';
import { kvSchemeSchema } from '../../formats/kv/schema.js';
import { benchSchema, count, positive } from '../record.js';

/** Attention of one token a sequence over one cache of a layer. */
const attentionRowSchema = z.strictObject({
  /** KV4, K8V4, ... */
  name: z.string(),
  scheme: kvSchemeSchema,
  sequences: count,
  /** Packed, of each sequence; and exact ones. */
  tokens: count,
  tail: z.int().nonnegative(),
  heads: count,
  kvHeads: count,
  headDim: count,
  /** Microseconds of kv_decode: the median pass, and the least. */
  us: positive,
  leastUs: positive,
  /** Codes, scales, zeros, exact tokens, queries and results, once each. */
  bytes: count,
  /** bytes / us against the device's copy, which is counted in bytes read and written. */
  copyShare: positive,
  /** The same tokens all in f16: what reading them at the speed of copies takes, which no attention over f16 can beat. */
  halfFloorUs: positive,
  halfFloorRatio: positive,
  /** And the same kernel over them, as an exact tail; null where it was not asked for. */
  exactUs: positive.nullable(),
  exactRatio: positive.nullable(),
  /** Torch's figure, where the device is of the class it was measured on. */
  torchUs: positive.nullable(),
  torchRatio: positive.nullable(),
  /** A token appended to every sequence: mean of a whole cycle, in which each packs its tail once. */
  append: z.strictObject({
    us: positive,
    /** Tokens of a cycle. */
    cycle: count,
    /** Of a decoding step, of appending and attention. */
    share: positive,
  }),
  /** All packed tokens of one sequence, of a prompt. */
  pack: z.strictObject({ us: positive, bytes: count, copyShare: positive }),
});
export type AttentionRow = z.infer<typeof attentionRowSchema>;

export const attentionBenchSchema = benchSchema('lpq-attention-bench', {
  passes: count,
  copyBytesPerSecond: positive,
  peers: z.record(z.string(), z.string()),
  rows: z.array(attentionRowSchema),
});
export type AttentionBench = z.infer<typeof attentionBenchSchema>;
