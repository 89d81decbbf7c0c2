import { z } from 'zod';
import { benchSchema, count, positive } from '../record.js';

/** Params of gemm_packed that override the library's choice. */
export const variantSchema = z.record(z.string(), z.union([z.number(), z.string()]));
export type Variant = z.infer<typeof variantSchema>;

/** Of a sensor over a run: least, mean and most; null where the device does not tell. */
const sensorSchema = z.strictObject({ least: z.number(), mean: z.number(), most: z.number() }).nullable();

/** A product run without a pause. */
const sustainedSchema = z.strictObject({
  seconds: positive,
  /** Median microseconds of a product in the second half, when clocks have settled. */
  us: positive,
  /** The same of the first tenth. */
  firstUs: positive,
  copyShare: positive,
  smClockMhz: sensorSchema,
  memoryClockMhz: sensorSchema,
  powerWatts: sensorSchema,
  temperatureC: sensorSchema,
  powerLimitWatts: z.number().nullable(),
  /** Why clocks were held down, by NVML's names, at any time of the run. */
  clockLimits: z.array(z.string()),
});
export type Sustained = z.infer<typeof sustainedSchema>;

/** One product: y [M,N] = x [M,K] Wᵀ. */
const rowSchema = z.strictObject({
  type: z.string(),
  k: count,
  n: count,
  m: count,
  /** Microseconds of a product as the library chooses to run it: the median pass, and the least. */
  us: positive,
  leastUs: positive,
  /** Right after them; null where the device does not tell. */
  smClockMhz: z.number().nullable(),
  /** Weights, scales, activations and results, once each. */
  bytes: count,
  /** bytes / us against the device's copy, which is counted in bytes read and written. */
  copyShare: positive,
  /** cuBLAS on unpacked weights of the activations' dtype, in the same run; null without a GPU. */
  cublasUs: positive.nullable(),
  cublasRatio: positive.nullable(),
  /** MARLIN's published figure, where the device is of the class it was measured on. */
  marlinUs: positive.nullable(),
  marlinRatio: positive.nullable(),
  sustained: sustainedSchema.optional(),
});
export type KernelRow = z.infer<typeof rowSchema>;

/** What one product takes with each of the tuning space's settings. */
const tunedSchema = z.strictObject({
  type: z.string(),
  k: count,
  n: count,
  m: count,
  /** The library's choice, and the best of the space; measured alike. */
  choiceUs: positive,
  bestUs: positive,
  best: variantSchema,
  /** choiceUs / bestUs; at most 1.05 is asked of the choice. */
  ratio: positive,
  within: z.boolean(),
  variants: z.array(z.strictObject({ params: variantSchema, us: positive })),
  /** Settings that no kernel has, or that do not fit the product or the device. */
  refused: z.int().nonnegative(),
});
export type Tuned = z.infer<typeof tunedSchema>;

export const kernelBenchSchema = benchSchema('lpq-kernel-bench', {
  settings: z.strictObject({
    dtype: z.enum(['f16', 'bf16']),
    group: z.union([z.literal(32), z.literal(64), z.literal(128), z.literal('channel')]),
    passes: count,
    /** Products in one replay; weights rotate among copies that together exceed the L2 cache eight times. */
    products: count,
  }),
  /** Bytes read and written a second by the device's own copy, in this run. */
  copyBytesPerSecond: positive,
  /** FLOP/s of a large product of cuBLAS in the activations' dtype, in this run; null without a GPU. */
  cublasFlops: positive.nullable(),
  peers: z.record(z.string(), z.string()),
  rows: z.array(rowSchema),
  tuning: z
    .strictObject({
      /** Settings in the space; of all points together: those that ran, and those refused. */
      space: z.int().nonnegative(),
      configurations: z.int().nonnegative(),
      refused: z.int().nonnegative(),
      seconds: positive,
      points: z.array(tunedSchema),
    })
    .optional(),
});
export type KernelBench = z.infer<typeof kernelBenchSchema>;
