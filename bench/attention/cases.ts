import { KV_HEAD_DIMS } from '../../formats/kv/forms.js';
import type { KvScheme } from '../../formats/kv/scheme.js';
import { notTaken } from '../../src/core/error.js';
import { listed } from '../lists.js';

/** Sequences that decode together, and the packed tokens that each has. */
export interface Context {
  readonly sequences: number;
  readonly tokens: number;
}

export interface HeadCounts {
  readonly heads: number;
  readonly kvHeads: number;
}

/** What is measured: every scheme in every context with every count of heads. */
export interface AttentionCase extends Context, HeadCounts {
  readonly scheme: KvScheme;
  readonly headDim: number;
  /** Newest tokens, in f16. */
  readonly tail: number;
}

/** One long sequence, and as many tokens twice in more and more sequences. */
export const CONTEXTS: readonly Context[] = [
  { sequences: 1, tokens: 131072 },
  { sequences: 8, tokens: 32768 },
  { sequences: 32, tokens: 8192 },
];

/** What the CPU's operation does in a moment. */
export const SMALL: readonly Context[] = [{ sequences: 2, tokens: 512 }];

const MOST_TOKENS = 1 << 20;
/** Pages come in whole blocks, of at most so many tokens. */
const UNIT = 256;

export const contextName = ({ sequences, tokens }: Context): string =>
  `${sequences}x${tokens % 1024 === 0 ? `${tokens / 1024}k` : tokens}`;
export const headsName = ({ heads, kvHeads }: HeadCounts): string => `${heads}/${kvHeads}`;

/** --contexts: a list of SEQUENCESxTOKENS, such as 8x32k. Throws LPQ_USAGE. */
export function parseContexts(text: string): Context[] {
  return listed('--contexts', text, contextName, (item) => {
    const match = /^(\d+)[x×](\d+)(k?)$/i.exec(item);
    const [sequences, tokens] = [Number(match?.[1]), Number(match?.[2]) * (match?.[3] ? 1024 : 1)];
    if (sequences >= 1 && sequences <= 4096 && tokens >= UNIT && tokens <= MOST_TOKENS && tokens % UNIT === 0)
      return { sequences, tokens };
    throw notTaken('--contexts', item, `sequences x tokens such as 8x32k; tokens a multiple of ${UNIT}, up to 1024k`);
  });
}

/** --heads: a list of query heads over kv heads, such as 32/8. Throws LPQ_USAGE. */
export function parseHeads(text: string): HeadCounts[] {
  return listed('--heads', text, headsName, (item) => {
    const match = /^(\d+)\/(\d+)$/.exec(item);
    const [heads, kvHeads] = [Number(match?.[1]), Number(match?.[2])];
    if (kvHeads >= 1 && heads <= 1024 && heads % kvHeads === 0 && heads >= kvHeads) return { heads, kvHeads };
    throw notTaken('--heads', item, 'query heads over kv heads that divide them, such as 32/8');
  });
}

/** --head-dim. Throws LPQ_USAGE. */
export function parseHeadDim(text: string): number {
  const dims = Number(text);
  const [least, most] = KV_HEAD_DIMS;
  if (!Number.isInteger(dims) || dims < least || dims > most || dims % 8 !== 0)
    throw notTaken('--head-dim', text, `a multiple of 8 from ${least} to ${most}`);
  return dims;
}
