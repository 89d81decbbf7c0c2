import { z } from 'zod';
import { INPUT_TYPE_NAMES } from '../../src/core/input-type.js';
import { kvLatentsSchema, kvModelSchemeSchema } from '../kv/schema.js';

/**
 * `lpq.json` of a quantized checkpoint (format lpq-canonical). A module's tensors lie in the checkpoint's safetensors
 * files as MODULE.codes, MODULE.scales, ... ; spec.md says what each holds.
 */
export const sha256Schema = z.string().regex(/^[0-9a-f]{64}$/);

export const scaleDtypeSchema = z.enum(['f16', 'bf16', 'f32', 'f8_e8m0', 'f8_e4m3']);
export type ScaleDtype = z.infer<typeof scaleDtypeSchema>;

export const granularitySchema = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('channel') }),
  z.strictObject({ kind: z.literal('group'), size: z.int().positive() }),
]);

/** The zero point subtracted from a decoded code: none (0), one constant, or one a scale, integer or float. */
export const zerosSchema = z.discriminatedUnion('kind', [
  z.strictObject({ kind: z.literal('none') }),
  z.strictObject({ kind: z.literal('const'), value: z.number() }),
  z.strictObject({ kind: z.literal('int'), dtype: z.enum(['u8', 'i16']) }),
  z.strictObject({ kind: z.literal('float'), dtype: z.enum(['f16', 'f32']) }),
]);
export type Zeros = z.infer<typeof zerosSchema>;

/** How the quantizer did on a module; absent for checkpoints that were read from elsewhere. */
export const qualitySchema = z.strictObject({
  method: z.string(),
  bitsPerWeight: z.number(),
  /** tr(D H Dᵀ) / tr(W H Wᵀ), D = W - Wq, in the Hessian of the inputs the module really sees; null without one (rtn). */
  relativeError: z.number().nullable(),
  damp: z.number().nullable(),
  seconds: z.number().optional(),
  note: z.string().optional(),
});
export type Quality = z.infer<typeof qualitySchema>;

/**
 * block [n, k] of weights a scale covers; global: a second level, F32 [1], that multiplies every scale. divisor: that level
 * as a format that divides stated it, an f32 whose rounded reciprocal global_scale is; two divisors may share one reciprocal. stored: what a scale covers in the
 * file that the module was read from, where `block` repeats it: blocks [n, k] of weights, cut at the edges, or the whole tensor. twoLevel: the
 * scales of a row are whole multiples, -15 to 16 and not 0, of one positive number.
 */
export const scalesSchema = z.strictObject({
  dtype: scaleDtypeSchema,
  block: z.tuple([z.int().positive(), z.int().positive()]),
  global: z.boolean(),
  divisor: z.number().positive().optional(),
  twoLevel: z.literal(true).optional(),
  stored: z.union([z.literal('tensor'), z.tuple([z.int().positive(), z.int().positive()])]).optional(),
});

/**
 * What a linear reads instead of its input in W4Ax (docs/fmpq.md): codes, for each block of columns of 4 or 8 bits, that reach a share
 * (the clip) of a token's largest magnitude in the block.
 */
export const activationsSchema = z.strictObject({
  block: z.literal(128),
  bits: z.array(z.union([z.literal(4), z.literal(8)])),
  clip: z.array(z.number().positive().max(1)),
});
export type Activations = z.infer<typeof activationsSchema>;

/**
 * A simulated cache of keys and values (W4Ax): asymmetric codes, a scale and a zero a channel and `group` tokens; `clip`: their range
 * is drawn in where that leaves the least squared error.
 */
export const kvChannelsSchema = z.strictObject({
  bits: z.int().min(1).max(8),
  group: z.int().positive(),
  clip: z.literal(true).optional(),
});

export const moduleSchema = z.strictObject({
  type: z.string(),
  /** [N, K]: out_features, in_features. */
  shape: z.tuple([z.int().positive(), z.int().positive()]),
  granularity: granularitySchema,
  scales: scalesSchema,
  zeros: zerosSchema,
  /** MODULE.g_idx I32 [K] names each input feature's group (act-order files from elsewhere). */
  groupIndex: z.boolean().default(false),
  /** MODULE.permutation I32 [K]: codes column j multiplies input feature permutation[j]. */
  permutation: z.boolean().default(false),
  /** MODULE.mask U8 [N, K/8]: bit k of a row is 1 where the weight is kept (2:4). */
  sparsity: z.enum(['none', '2:4']).default('none'),
  /** The linear reads codes instead of its input. */
  activations: activationsSchema.optional(),
  /** The largest magnitude of the linear's input, an f32, over the calibration text in the unquantized model; for static scales of activations. */
  inputMost: z.number().positive().optional(),
  /** The linear's input is rounded to this type (--input-dtype). */
  inputType: z.enum(INPUT_TYPE_NAMES).optional(),
  /** dtype that the weight had in the source. */
  sourceDtype: z.string(),
  /** The source stores the weight as [K, N] (Conv1D of GPT-2): shape, codes and scales are those of its transpose. */
  transposed: z.boolean().optional(),
  /** The file that it was read from has 32 div b whole codes a word (compressed-tensors before 0.13), not one dense stream. */
  packing: z.literal('whole').optional(),
  /** The hash of each tensor (safetensors/hash.ts), by the last part of its name: codes, scales, zeros, global_scale, g_idx, ... */
  sha256: z.record(z.string(), sha256Schema),
  quality: qualitySchema.optional(),
});
export type CanonicalModule = z.infer<typeof moduleSchema>;

export const calibrationSchema = z.strictObject({
  name: z.string(),
  /** Of the text's bytes; of a mix: of its lines 'SHA256 WEIGHT'. */
  sha256: sha256Schema,
  sequences: z.int(),
  tokens: z.int(),
  seed: z.int(),
  /** What the scales were trained on beside (--tune-scales), where they were. */
  further: z.strictObject({ sequences: z.int().nonnegative(), tokens: z.int().nonnegative() }).optional(),
  /** Token ids that every window and document begins with; absent where there are none. */
  prefix: z.array(z.int().nonnegative()).min(1).optional(),
  /** Of the chat template and the special tokens, where conversations went through them. */
  chatTemplate: sha256Schema.optional(),
  /** Of a mix: every text with its share. */
  files: z
    .array(
      z.strictObject({
        name: z.string(),
        sha256: sha256Schema,
        weight: z.number().positive(),
        sequences: z.int(),
        tokens: z.int(),
      }),
    )
    .optional(),
});
export type CalibrationRecord = z.infer<typeof calibrationSchema>;

export const provenanceSchema = z.strictObject({
  lpq: z.string(),
  source: z.strictObject({
    name: z.string(),
    revision: z.string().nullable(),
    /** sha256 of config.json, of every shard's header and of a sample of every weight (safetensors/spec.md). */
    fingerprint: sha256Schema,
  }),
  method: z.string(),
  options: z.record(z.string(), z.unknown()),
  calibration: calibrationSchema.nullable(),
});
export type Provenance = z.infer<typeof provenanceSchema>;

/**
 * By the path of an attention: the largest magnitudes, f32, of its keys (after rotary positions and norms) and values, over the calibration
 * text in the unquantized model.
 */
export const kvMostSchema = z.record(
  z.string(),
  z.strictObject({ keys: z.number().positive(), values: z.number().positive() }),
);
export type KvMost = z.infer<typeof kvMostSchema>;

export const canonicalSchema = z.strictObject({
  format: z.literal('lpq-canonical'),
  version: z.literal(1),
  modules: z.record(z.string(), moduleSchema),
  /** Tensors carried through unchanged -> their hashes: name, dtype, shape and bytes. */
  carried: z.record(z.string(), sha256Schema),
  /** The cache of keys and values: simulated (W4Ax), or packed (formats/kv); or of latents. */
  kv: z.union([kvChannelsSchema, kvModelSchemeSchema, kvLatentsSchema]).optional(),
  /** The largest magnitudes for scales of a cache in FP8. */
  kvMost: kvMostSchema.optional(),
  provenance: provenanceSchema,
});
export type CanonicalManifest = z.infer<typeof canonicalSchema>;
