import { KV_FORMS, kvStoredDims } from '../../formats/kv/forms.js';
import { type KvModelScheme, type KvScheme, kvModelWidths, kvSchemesOf } from '../../formats/kv/scheme.js';
import { LpqError } from '../core/error.js';
import { blockTokens } from './page.js';

/** Bits of keys and values. */
export const KV_BITS = ['2', '4', '8', 'k8v4'] as const;
export type KvBits = (typeof KV_BITS)[number];

/** What was asked for: --kv and the options beside it. */
export interface KvWish {
  readonly kv: KvBits;
  readonly granularity?: 'channel' | 'token';
  readonly group?: number;
  readonly residual?: number;
  readonly fit?: boolean;
  /** Layers, by index, with other bits. */
  readonly layers?: ReadonlyMap<number, KvBits>;
}

/** Tokens of a channel, or dims of a head, that share a scale. */
const GROUP = { 2: 32, 4: 128, 8: 128 } as const;

const bitsOf = (kv: KvBits): readonly [keys: 2 | 4 | 8, values: 2 | 4 | 8] =>
  kv === 'k8v4' ? [8, 4] : [Number(kv) as 2 | 4 | 8, Number(kv) as 2 | 4 | 8];

/**
 * The scheme of a wish for heads of `headDim` dims. Keys by channel, or by token with a group: BitDecoding's form; by token
 * without one, 4 and 8 bits: TurboMind's, one scale per token and head and no exact tail. Throws LPQ_USAGE.
 */
export function kvSchemeOf(wish: KvWish, headDim: number): KvModelScheme {
  const { kv, granularity = 'channel', group } = wish;
  const [k, v] = bitsOf(kv);
  const form = granularity === 'token' && group === undefined && k !== 2 ? 'turbomind' : 'bitdecoding';
  const { tail, wholeHeads } = KV_FORMS[form];
  const dims = kvStoredDims(headDim);
  if (group !== undefined && ![32, 64, 128].includes(group))
    throw new LpqError('LPQ_USAGE', `--kv-group does not take ${group}`, { got: group, expected: '32, 64 or 128' });
  const ofHead = (bits: 2 | 4 | 8): number => (wholeHeads ? dims : Math.min(group ?? GROUP[bits], dims));
  for (const each of [ofHead(v), ...(granularity === 'token' ? [ofHead(k)] : [])])
    if (dims % each !== 0)
      throw new LpqError('LPQ_USAGE', `groups of ${each} dims do not divide the model's heads of ${headDim}`, {
        got: each,
        hint: 'Use --kv-group 32, or --kv-granularity token with --kv 4 or 8.',
      });
  const scheme: KvModelScheme = {
    form,
    keys: { bits: k, granularity, group: granularity === 'channel' ? (group ?? GROUP[k]) : ofHead(k) },
    values: { bits: v, group: ofHead(v) },
    residual: 0,
    ...layersOf(wish, form),
  };
  const block = modelBlockTokens(scheme);
  const residual = wish.residual ?? (tail ? block : 0);
  if (!tail && residual !== 0)
    throw new LpqError('LPQ_USAGE', '--kv-residual has no effect on a cache that packs every token as it comes', {
      got: residual,
      hint: 'Leave it out, or name groups (--kv-group) or --kv-granularity channel.',
    });
  if (residual % block !== 0 || residual < 0)
    throw new LpqError('LPQ_USAGE', `--kv-residual ${residual} holds no whole blocks`, {
      got: residual,
      expected: `0, or a multiple of ${block} for ${kvModelWidths(scheme)}`,
    });
  return { ...scheme, residual, ...(wish.fit && { fit: true as const }) };
}

/** Tokens that every layer packs in whole blocks: of powers of two the largest. */
export function modelBlockTokens(scheme: KvModelScheme): number {
  return Math.max(...kvSchemesOf(scheme).map(blockTokens));
}

/** The layers with other bits than most. */
function layersOf({ kv, layers }: KvWish, form: KvScheme['form']): Pick<KvModelScheme, 'layers'> {
  const others = [...(layers ?? [])].filter(([, bits]) => bits !== kv).sort(([a], [b]) => a - b);
  const odd = KV_FORMS[form].wholeHeads ? others.find(([, bits]) => bits === '2') : undefined;
  if (odd)
    throw new LpqError('LPQ_USAGE', `--kv-layers ${odd[0]}=2 does not go with one scale for each token and head`, {
      got: '2 bits',
      expected: '4, 8 or k8v4',
      hint: 'Name groups (--kv-group 32), or use --kv-granularity channel.',
    });
  if (others.length === 0) return {};
  const entries = others.map(([layer, bits]) => {
    const [keys, values] = bitsOf(bits);
    return [String(layer), { keys, values }] as const;
  });
  return { layers: Object.fromEntries(entries) };
}
