import { z } from 'zod';
import { benchSchema, count, positive } from '../record.js';

/** One step of a model. */
const modelRowSchema = z.strictObject({
  /** Of the blocks' linears: dense (16 bits), u4, ..., w4ax, w4a8, w8a8, fp8. */
  weights: z.string(),
  /** Bits of keys and values. */
  kv: z.int(),
  phase: z.enum(['prefill', 'decode']),
  /** Sequences, and tokens of each when the step is done. */
  m: count,
  context: count,
  /**
   * Of the whole model: the median pass; where fewer blocks were measured, theirs as many times as there are. Of a prefill the time to
   * the first token's logits.
   */
  ms: positive,
  /** Tokens that the step reads (prefill) or makes (decode), a second. */
  tokensPerSecond: positive,
  /** Seconds of the calls of each operation, run by themselves, over those of all; the largest first. */
  kernels: z.record(z.string(), z.number()),
  /** Sums of those. */
  shares: z.strictObject({ products: z.number(), attention: z.number(), rest: z.number() }),
  /** Operations of the step as it was measured. */
  calls: count,
  /** Bytes, of the whole model. */
  weightBytes: count,
  cacheBytes: count,
  /** The most that activations and tables hold at once, in the order of the program, and on CUDA what operations take besides. */
  workBytes: count,
  /** Their sum: what the step needs of the device. */
  memoryBytes: count,
});
export type ModelRow = z.infer<typeof modelRowSchema>;

/** What `lpq bench model` writes. */
export const modelBenchSchema = benchSchema('lpq-model-bench', {
  shape: z.string(),
  blocks: count,
  measuredBlocks: count,
  /** Weights that share a scale; 0: a row. */
  group: z.int().nonnegative(),
  /** Share of the blocks of activations that have 4 bits in w4ax. */
  int4Share: z.number().min(0).max(1),
  /** Of lm_head, named as those of the rows. */
  head: z.string().default('dense'),
  activations: z.string(),
  passes: count,
  rows: z.array(modelRowSchema),
  /** Steps that did not fit the device's memory. */
  leftOut: z.array(z.string()),
});
export type ModelBench = z.infer<typeof modelBenchSchema>;
