import { KV_FORMS, kvStoredDims } from '../../formats/kv/forms.js';
import type { KvScheme } from '../../formats/kv/scheme.js';
import { LpqError } from '../core/error.js';
import { blockTokens } from './page.js';

/** What was asked for: --kv and the options beside it. */
export interface KvWish {
  readonly kv: '2' | '4' | '8' | 'k8v4';
  readonly granularity?: 'channel' | 'token';
  readonly group?: number;
  readonly residual?: number;
  readonly fit?: boolean;
}

/** Tokens of a channel, or dims of a head, that share a scale. */
const GROUP = { 2: 32, 4: 128, 8: 128 } as const;

/**
 * The scheme of a wish for heads of `headDim` dims. Keys by channel, or by token with a group: BitDecoding's form; by token
 * without one, 4 and 8 bits: TurboMind's, one scale per token and head and no exact tail. Throws LPQ_USAGE.
 */
export function kvSchemeOf(wish: KvWish, headDim: number): KvScheme {
  const { kv, granularity = 'channel', group } = wish;
  const [k, v] = kv === 'k8v4' ? ([8, 4] as const) : ([Number(kv) as 2 | 4 | 8, Number(kv) as 2 | 4 | 8] as const);
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
  const scheme: KvScheme = {
    form,
    keys: { bits: k, granularity, group: granularity === 'channel' ? (group ?? GROUP[k]) : ofHead(k) },
    values: { bits: v, group: ofHead(v) },
    residual: 0,
  };
  const block = blockTokens(scheme);
  const residual = wish.residual ?? (tail ? block : 0);
  if (!tail && residual !== 0)
    throw new LpqError('LPQ_USAGE', '--kv-residual has no effect on a cache that packs every token as it comes', {
      got: residual,
      hint: 'Leave it out, or name groups (--kv-group) or --kv-granularity channel.',
    });
  if (residual % block !== 0 || residual < 0)
    throw new LpqError('LPQ_USAGE', `--kv-residual ${residual} holds no whole blocks`, {
      got: residual,
      expected: `0, or a multiple of ${block} for ${k === v ? `${k} bits` : `${k} and ${v} bits`}`,
    });
  return { ...scheme, residual, ...(wish.fit && { fit: true as const }) };
}
