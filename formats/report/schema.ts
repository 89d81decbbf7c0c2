import { z } from 'zod';
import { calibrationSchema, sha256Schema } from '../canonical/schema.js';

/**
 * `OUT.report.json`: what a quantization did, beside its output OUT, whose own bytes say nothing of times and machines.
 * docs/reports.md explains the fields; share/schemas/report.schema.json is this schema for other programs.
 */
const finite = z.number();

/** Scales of a module against what 16-bit kernels can hold; docs/reports.md. */
export const rangeSchema = z.strictObject({
  /** Smallest and largest magnitude of a scale that is not 0, the second level included. */
  smallestScale: finite,
  largestScale: finite,
  /** Largest magnitude that a weight can dequantize to. */
  largestWeight: finite,
  /** log2(65504 / largestWeight): how many times it could double before fp16 overflows. */
  above: finite,
  /** log2(smallestScale / 2^-14): how many times it could halve before fp16 loses bits. */
  below: finite,
});

/** Chosen scales over those of the full range (rounding to nearest), of a sample of groups. */
export const clipSchema = z.strictObject({
  groups: z.int().positive(),
  mean: finite,
  smallest: finite,
  largest: finite,
  /** Groups whose ratio is below 0.5, from 0.5 to 0.6, ..., from 1.0 to 1.1, and above. */
  histogram: z.array(z.int().nonnegative()).length(8),
});

export const measuresSchema = z.strictObject({
  /** How often the Hessian was damped until it could be factored. */
  dampAttempts: z.int().positive().optional(),
  clip: clipSchema.optional(),
  range: rangeSchema.optional(),
  /** --tune: mean squared errors of the block's output on batches held out, where it started, and the step that was kept (0: none). */
  tune: z
    .strictObject({
      steps: z.int().positive(),
      /** Of earlier versions alone. */
      start: z.enum(['least', 'nearest']).optional(),
      kept: z.int().nonnegative(),
      curve: z.array(z.strictObject({ step: z.int().nonnegative(), loss: finite })),
    })
    .optional(),
});
export type Measures = z.infer<typeof measuresSchema>;

export const reportModuleSchema = z.strictObject({
  name: z.string(),
  /** Index of the block, null outside of blocks. */
  block: z.int().nonnegative().nullable(),
  /** The last part of the name, by which linears of one role are compared: q_proj, down_proj, ... */
  kind: z.string(),
  expert: z.int().nonnegative().nullable(),
  scheme: z.string(),
  shape: z.tuple([z.int().positive(), z.int().positive()]),
  method: z.string().nullable(),
  bitsPerWeight: finite,
  relativeError: finite.nullable(),
  damp: finite.nullable(),
  tokens: z.int().nonnegative().nullable(),
  seconds: finite.nullable(),
  note: z.string().nullable(),
  measures: measuresSchema,
  /** Share of the 128-channel blocks whose activations have 4 bits; null where activations are not quantized. */
  int4Share: finite.nullable(),
});
export type ReportModule = z.infer<typeof reportModuleSchema>;

export const stageSchema = z.strictObject({
  name: z.string(),
  seconds: finite,
  /** Largest resident memory of the process seen in the stage, bytes. */
  rss: z.int().nonnegative(),
  /** Most device memory in use so far, bytes; null on the CPU. */
  device: z.int().nonnegative().nullable(),
});
export type ReportStage = z.infer<typeof stageSchema>;

const perplexitySchema = z.strictObject({ ppl: finite, error: finite.nullable() });

export const evaluationSchema = z.strictObject({
  text: z.string(),
  sha256: sha256Schema,
  ctx: z.int().min(2),
  /** Token ids that every window begins with, and that are not scored. */
  prefix: z.array(z.int().nonnegative()).default([]),
  windows: z.int().positive(),
  tokens: z.int().positive(),
  /** Number format of the CPU's products, where it was not fp32. */
  products: z.literal('bf16').optional(),
  /** Of this checkpoint; errors are standard errors over windows. */
  perplexity: perplexitySchema,
  /** The source's, and the divergence from it: KL(source || this) a token in nats, and how often the likeliest token agrees. */
  source: z
    .strictObject({
      name: z.string(),
      perplexity: perplexitySchema,
      kl: z.strictObject({ mean: finite, error: finite.nullable() }),
      sameTop: z.strictObject({ mean: finite, error: finite.nullable() }),
    })
    .nullable(),
});
export type Evaluation = z.infer<typeof evaluationSchema>;

/** --tune-scales: KL to the unquantized model, nats a token; docs/reports.md. */
export const scaleTrainingSchema = z.strictObject({
  steps: z.int().positive(),
  /** The step that was kept; 0: the scales as they were. */
  kept: z.int().nonnegative(),
  /** Tokens that steps were taken on, and those held out, which choose the step. */
  tokens: z.int().nonnegative(),
  heldOut: z.int().positive(),
  /** How many norms were trained, too. */
  norms: z.int().positive().optional(),
  /** Of the held-out tokens after a step, and the mean of the steps since the entry before. */
  curve: z.array(z.strictObject({ step: z.int().nonnegative(), loss: finite, training: finite.nullable() })),
});
type ScaleTraining = z.infer<typeof scaleTrainingSchema>;
export type ScaleTrainingFacts = Readonly<Omit<ScaleTraining, 'curve'>> & {
  readonly curve: readonly Readonly<ScaleTraining['curve'][number]>[];
};

export const reportSchema = z.strictObject({
  format: z.literal('lpq-report'),
  version: z.literal(1),
  /** Name of the quantized directory. */
  output: z.string(),
  lpq: z.string(),
  source: z.strictObject({ name: z.string(), revision: z.string().nullable(), fingerprint: sha256Schema }),
  method: z.string(),
  options: z.record(z.string(), z.unknown()),
  calibration: calibrationSchema.nullable(),
  totals: z.strictObject({
    modules: z.int().nonnegative(),
    weights: z.int().nonnegative(),
    carriedTensors: z.int().nonnegative(),
    bitsPerWeight: finite,
    /** Mean over modules of equal weight; null without statistics. */
    relativeError: finite.nullable(),
    /** Of the multiplications (weights) whose activations have 4 bits; null where activations are not quantized. */
    int4Share: finite.nullable(),
    seconds: finite.nullable(),
    peakRss: z.int().nonnegative().nullable(),
  }),
  modules: z.array(reportModuleSchema),
  /** In the order in which they began; empty for a report made of the checkpoint alone. */
  stages: z.array(stageSchema),
  /** Seconds that the run waited for files, which are part of the stages. */
  waits: z.strictObject({ read: finite, write: finite }).nullable(),
  machine: z
    .strictObject({ cpu: z.string(), cores: z.int().positive(), memory: z.int().positive(), device: z.string() })
    .nullable(),
  evaluations: z.array(evaluationSchema),
  scaleTraining: scaleTrainingSchema.nullable().default(null),
});
export type Report = z.infer<typeof reportSchema>;
