import path from 'node:path';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import { inOrder } from './confined/ahead.js';
import { type Allowance, budgetFor, GENEROUS, secondsFor } from './confined/allowance.js';
import type { Excess } from './confined/host.js';
import { Opened } from './confined/opened.js';
import type { OpenedTokenizer } from './confined/protocol.js';
import { openPrefix, withPrefix } from './prefix.js';

/** Text to token ids, without special tokens. */
export type Encode = (text: string) => Promise<Int32Array>;

/** Code points encoded at once. Part of the protocol: a token never spans two pieces. */
export const PIECE_CHARACTERS = 200_000;

/** Text to tokens and back. Each call throws LPQ_CONFIG, LPQ_BUDGET, LPQ_ABORTED. */
export interface Codec {
  /** As Encode. */
  encode(text: string): Promise<Int32Array>;
  /** What a model is given to go on from: with the special tokens that the tokenizer puts around a text, such as <s>. */
  encodePrompt(text: string): Promise<Int32Array>;
  /** The text of tokens, special ones left out; bytes that are no UTF-8 become U+FFFD. */
  decode(ids: readonly number[]): Promise<string>;
}

/**
 * The tokenizer of a model directory: tokenizer.json and, where there is one, tokenizer_config.json. Text is encoded in
 * pieces of 200,000 code points. Throws LPQ_CONFIG, and LPQ_BUDGET where it does not come to an end: it runs in a process of its own.
 */
export async function openTokenizer(dir: string, allowance: Allowance = GENEROUS): Promise<Encode> {
  const codec = await openCodec(dir, allowance);
  return (text) => codec.encode(text);
}

/** The same in both directions. Throws LPQ_CONFIG, LPQ_BUDGET. */
export async function openCodec(dir: string, allowance: Allowance = GENEROUS): Promise<Codec> {
  const file = path.join(dir, 'tokenizer.json');
  tell('opening the tokenizer');
  const opened = await Opened.open<OpenedTokenizer>({ kind: 'tokenizer', dir }, budgetFor(allowance), (excess) =>
    beyond(file, 'be opened', excess),
  );
  const idsOf = async (text: string, special: boolean): Promise<Int32Array> => {
    const ids = await opened.ask<Int32Array>(
      ({ at }) => ({ kind: 'encode', at, text, special }),
      secondsFor(allowance, text.length),
      (excess, { patterns }) => beyond(file, `encode ${text.length} characters`, excess, patterns),
    );
    // What arrives is a view of the message.
    return new Int32Array(ids);
  };
  // The library reads the post-processor alone; tokenizer_config.json may ask for more.
  const prefix = openPrefix(dir, 'auto').ids;
  return {
    async encode(text) {
      const parts = cut(text, PIECE_CHARACTERS);
      const told = parts.length > 1 ? `encoding text, pieces of ${PIECE_CHARACTERS} characters` : undefined;
      const pieces = await inOrder(parts, (piece) => idsOf(piece, false), told);
      const [first] = pieces;
      if (first && pieces.length === 1) return first;
      const ids = new Int32Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
      let at = 0;
      for (const piece of pieces) {
        ids.set(piece, at);
        at += piece.length;
      }
      return ids;
    },
    encodePrompt: async (text) => withPrefix(await idsOf(text, true), prefix),
    decode: async (ids) =>
      ids.length === 0
        ? ''
        : opened.ask<string>(
            ({ at }) => ({ kind: 'decode', at, ids }),
            secondsFor(allowance, ids.length),
            (excess, { patterns }) => beyond(file, `decode ${ids.length} tokens`, excess, patterns),
          ),
  };
}

function beyond(file: string, what: string, { of, got }: Excess, patterns: readonly string[] = []): LpqError {
  const limit = of === 'time' ? 'within its limit of time' : 'within its limit of memory';
  const [first] = patterns;
  const rest = patterns.length > 1 ? `, or of ${patterns.length - 1} more` : '';
  return new LpqError('LPQ_BUDGET', `${file} cannot ${what} ${limit}`, {
    got,
    ...(first !== undefined && {
      expected: `an end, whatever the text: look at the pattern ${shortened(first)}${rest}`,
    }),
    hint: 'Use the published tokenizer.json; this one may be an attempt to hang programs.',
  });
}

function shortened(pattern: string): string {
  return pattern.length > 80 ? `${pattern.slice(0, 80)}...` : pattern;
}

/** Pieces of `length` code points; the last may be shorter. */
export function cut(text: string, length: number): string[] {
  const pieces: string[] = [];
  for (let start = 0; start < text.length; ) {
    let end = start;
    for (let left = length; left > 0 && end < text.length; left--)
      end += (text.codePointAt(end) as number) > 0xffff ? 2 : 1;
    pieces.push(text.slice(start, end));
    start = end;
  }
  return pieces;
}
