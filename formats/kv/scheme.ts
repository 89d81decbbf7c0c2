import { z } from 'zod';

const bits = z.union([z.literal(2), z.literal(4), z.literal(8)]);

/** Most tokens of a cache that stay exact: more than any kernel keeps, and few enough to compute with. */
export const MOST_RESIDUAL = 2 ** 16;

/**
 * How a cache of keys and values is stored (formats/kv/spec.md). Codes are asymmetric, a scale and a zero (the smallest
 * value) of f16 a group.
 */
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
});
export type KvScheme = z.infer<typeof kvSchemeSchema>;

/** Widths of keys and values: KV4, KV2 ..., K8V4. */
export function kvWidths({ keys, values }: KvScheme): string {
  return keys.bits === values.bits ? `KV${keys.bits}` : `K${keys.bits}V${values.bits}`;
}

/** A scheme in a few words, its widths first. */
export function printKvScheme(scheme: KvScheme): string {
  const { form, keys, values, residual } = scheme;
  const groups =
    keys.granularity === 'channel'
      ? `keys by channel over ${keys.group} tokens, values by ${values.group} dims`
      : `keys by ${keys.group} dims, values by ${values.group}`;
  return `${kvWidths(scheme)} (${form}; ${groups}; ${residual === 0 ? 'every token' : `but the newest up to ${residual}`})`;
}
