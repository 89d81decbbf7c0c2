import type { KvScheme } from './schema.js';

export type { KvScheme };

/** Most tokens of a cache that stay exact: more than any kernel keeps, and few enough to compute with. */
export const MOST_RESIDUAL = 2 ** 16;

/** Widths of keys and values: KV4, KV2 ..., K8V4. */
export function kvWidths({ keys, values }: KvScheme): string {
  return keys.bits === values.bits ? `KV${keys.bits}` : `K${keys.bits}V${values.bits}`;
}

/** A scheme in a few words, its widths first. */
export function printKvScheme(scheme: KvScheme): string {
  const { form, keys, values, residual, fit } = scheme;
  const groups =
    keys.granularity === 'channel'
      ? `keys by channel over ${keys.group} tokens, values by ${values.group} dims`
      : `keys by ${keys.group} dims, values by ${values.group}`;
  return `${kvWidths(scheme)} (${form}; ${groups}${fit ? ', fitted' : ''}; ${residual === 0 ? 'every token' : `but the newest up to ${residual}`})`;
}
