import { z } from 'zod';
import { MOST_RESIDUAL } from './scheme.js';

const bits = z.union([z.literal(2), z.literal(4), z.literal(8)]);

/** How the keys and values of one layer are stored (formats/kv/spec.md). Codes are asymmetric, a scale and a zero of f16 a group. */
export const kvSchemeSchema = z.strictObject({
  form: z.enum(['bitdecoding', 'turbomind']),
  keys: z.strictObject({
    bits,
    /** channel: a group is a channel over `group` tokens; token: `group` dims of a head of one token. */
    granularity: z.enum(['channel', 'token']),
    group: z.int().positive(),
  }),
  /** Groups of dims of a head of one token. */
  values: z.strictObject({ bits, group: z.int().positive() }),
  /** Newest tokens up to which stay exact (f16): so many are packed at once. 0: every token is packed as it comes. */
  residual: z.int().nonnegative().max(MOST_RESIDUAL),
  /** The ends of each group are those of the least squared error found; without it, its smallest and largest. */
  fit: z.literal(true).optional(),
});
export type KvScheme = z.infer<typeof kvSchemeSchema>;

/** How a cache of latents is stored: groups of dims of the latent of one token. */
export const kvLatentsSchema = z.strictObject({
  form: z.literal('latent'),
  bits,
  group: z.union([z.literal(32), z.literal(64), z.literal(128)]),
});
export type StoredLatents = z.infer<typeof kvLatentsSchema>;

/** How the keys and values of a model are stored: `layers`, by index, have other bits, and all else alike. */
export const kvModelSchemeSchema = kvSchemeSchema.extend({
  layers: z.record(z.string().regex(/^(0|[1-9]\d{0,4})$/), z.strictObject({ keys: bits, values: bits })).optional(),
});
export type KvModelScheme = z.infer<typeof kvModelSchemeSchema>;
