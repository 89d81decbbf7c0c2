import { kvStoredDims } from './forms.js';
import type { KvModelScheme, KvScheme } from './schema.js';

export type { KvModelScheme, KvScheme };

/** Most tokens of a cache that stay exact: more than any kernel keeps, and few enough to compute with. */
export const MOST_RESIDUAL = 2 ** 16;

/** The scheme of one layer of a model. */
export function kvSchemeAt({ layers, ...scheme }: KvModelScheme, layer: number): KvScheme {
  const bits = layers?.[layer];
  if (!bits) return scheme;
  const { keys, values } = scheme;
  return { ...scheme, keys: { ...keys, bits: bits.keys }, values: { ...values, bits: bits.values } };
}

/** Every scheme that a layer may have, that of most layers first. */
export function kvSchemesOf(scheme: KvModelScheme): KvScheme[] {
  const { layers = {}, ...most } = scheme;
  return [most, ...Object.keys(layers).map((layer) => kvSchemeAt(scheme, Number(layer)))];
}

/** Layers with keys and values of their own: the index, and the heads. */
export interface KvLayer {
  readonly layer: number;
  readonly kvHeads: number;
  readonly headDim: number;
}

/**
 * What packed tokens take: bytes of a token in all layers, codes, scales and zeros; and bits of a number of the model, the zeros
 * that fill up heads among them.
 */
export function kvTokenSize(scheme: KvModelScheme, layers: readonly KvLayer[]): { bytes: number; bits: number } {
  let [bits, numbers] = [0, 0];
  for (const { layer, kvHeads, headDim } of layers) {
    const { keys, values } = kvSchemeAt(scheme, layer);
    for (const side of [keys, values]) bits += kvHeads * kvStoredDims(headDim) * (side.bits + 32 / side.group);
    numbers += 2 * kvHeads * headDim;
  }
  return { bytes: bits / 8, bits: numbers === 0 ? 0 : bits / numbers };
}

/** Widths of keys and values: KV4, KV2 ..., K8V4. */
export function kvWidths({ keys, values }: Pick<KvScheme, 'keys' | 'values'>): string {
  return keys.bits === values.bits ? `KV${keys.bits}` : `K${keys.bits}V${values.bits}`;
}

/** Those of a model: KV4, KV8 in layers 0 and 3. */
export function kvModelWidths(scheme: KvModelScheme): string {
  const others = new Map<string, string[]>();
  for (const layer of Object.keys(scheme.layers ?? {})) {
    const widths = kvWidths(kvSchemeAt(scheme, Number(layer)));
    others.set(widths, [...(others.get(widths) ?? []), layer]);
  }
  const named = [...others].map(
    ([widths, of]) =>
      `${widths} in layer${of.length > 1 ? 's' : ''} ${[of.slice(0, -1).join(', '), of.at(-1)].filter(Boolean).join(' and ')}`,
  );
  return [kvWidths(scheme), ...named].join(', ');
}

/** A scheme in a few words, its widths first. */
export function printKvScheme(scheme: KvModelScheme): string {
  const { form, keys, values, residual, fit } = scheme;
  const groups =
    keys.granularity === 'channel'
      ? `keys by channel over ${keys.group} tokens, values by ${values.group} dims`
      : `keys by ${keys.group} dims, values by ${values.group}`;
  return `${kvModelWidths(scheme)} (${form}; ${groups}${fit ? ', fitted' : ''}; ${residual === 0 ? 'every token' : `but the newest up to ${residual}`})`;
}
