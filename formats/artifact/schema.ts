import { z } from 'zod';
import {
  activationsSchema,
  granularitySchema,
  kvChannelsSchema,
  kvMostSchema,
  provenanceSchema,
  scalesSchema,
  sha256Schema,
  zerosSchema,
} from '../canonical/schema.js';
import { kvLatentsSchema, kvModelSchemeSchema } from '../kv/schema.js';

/**
 * `lpq.json` of a packed directory (format lpq-artifact). `canonical` of a module are the hashes of what was packed, in
 * the canonical form (byte bitstream, [N, G] scales and zeros), so that a verifier that unpacks the bytes with its own
 * decoder can prove them without the canonical checkpoint at hand.
 */
export const packedModuleSchema = z.strictObject({
  type: z.string(),
  /** [N, K] of the weight; padded is what the layout holds (with ranks: for each of them). */
  shape: z.tuple([z.int().positive(), z.int().positive()]),
  padded: z.tuple([z.int().positive(), z.int().positive()]),
  granularity: granularitySchema,
  scales: scalesSchema,
  zeros: zerosSchema,
  /**
   * Ranks of tensor parallelism that share the module, in order: by runs of output features (n) or of input features (k).
   * Rank r has the tensors MODULE.rankR.*; shape and canonical are of the whole.
   */
  ranks: z.strictObject({ count: z.int().min(2), split: z.enum(['n', 'k']) }).optional(),
  /** Name of the layout (docs/internals/layouts, docs/targets.md); gguf-TYPE; carried: left as in the canonical checkpoint; dense: as a plain weight. */
  layout: z.string(),
  /** The source stores the weight as [K, N], and so does layout dense; every other layout holds [N, K]. */
  transposed: z.boolean().optional(),
  /** Of layout compressed-tensors: words of 32 div b whole codes, as in the file that the module came from. */
  packing: z.literal('whole').optional(),
  /**
   * The linear reads codes instead of its input: of layout comet, whose tensors say the same, and of modules left in canonical form
   * beside it. Other targets pack such modules for 16 bits, and leave this out.
   */
  activations: activationsSchema.optional(),
  /** The largest magnitude of its input (formats/canonical/spec.md), for layouts that store a scale computed from it. */
  inputMost: z.number().positive().optional(),
  /** What the target did and why, one sentence each: padding, a fallback, a choice between layouts. */
  notes: z.array(z.string()),
  /** tensor name in the safetensors files -> its hash: name, dtype, shape and bytes. */
  tensors: z.record(z.string(), sha256Schema),
  canonical: z.strictObject({
    codes: sha256Schema,
    scales: sha256Schema,
    zeros: sha256Schema.optional(),
    global_scale: sha256Schema.optional(),
    g_idx: sha256Schema.optional(),
    permutation: sha256Schema.optional(),
    mask: sha256Schema.optional(),
    /** Layouts dense (the dequantized weight) and gguf-* of searched blocks (what they mean): anchors where codes are gone. */
    weight: sha256Schema.optional(),
  }),
});
export type PackedModule = z.infer<typeof packedModuleSchema>;

export const artifactSchema = z.strictObject({
  format: z.literal('lpq-artifact'),
  version: z.literal(1),
  target: z.string(),
  modules: z.record(z.string(), packedModuleSchema),
  /** Tensors carried through unchanged -> their hashes: name, dtype, shape and bytes. */
  carried: z.record(z.string(), sha256Schema),
  /** Every other file of the directory but this one and the shards -> sha256. */
  files: z.record(z.string(), sha256Schema),
  /** How the cache of keys and values is packed (formats/kv), where the quantized checkpoint says so; for comet, how it is simulated. */
  kv: z.union([kvChannelsSchema, kvModelSchemeSchema, kvLatentsSchema]).optional(),
  /** Scales of a cache in FP8: the largest magnitudes that they come from, and the tensors -> their hashes. */
  kvScales: z.strictObject({ most: kvMostSchema, tensors: z.record(z.string(), sha256Schema) }).optional(),
  /** Ranks of expert parallelism: no file holds experts of two ranks, or an expert and a tensor of all ranks (expert-ranks.ts). */
  expertRanks: z.int().min(2).optional(),
  provenance: provenanceSchema,
  /** sha256 of this very file with these 64 digits written as zeros (seal.ts): covers names, notes and white space. */
  seal: sha256Schema.optional(),
});
export type ArtifactManifest = z.infer<typeof artifactSchema>;
