import { existsSync } from 'node:fs';
import path from 'node:path';
import { Tokenizer } from '@huggingface/tokenizers';
import { readRegularText } from '../../formats/directory/read-file.js';
import { LpqError } from '../core/error.js';

/** Text to token ids, without special tokens. */
export type Encode = (text: string) => Int32Array;

/** Code points encoded at once. Part of the protocol: a token never spans two pieces. */
export const PIECE_CHARACTERS = 200_000;

/** Text to tokens and back. */
export interface Codec {
  /** As Encode. */
  encode(text: string): Int32Array;
  /** What a model is given to go on from: with the special tokens that the tokenizer puts around a text, such as <s>. */
  encodePrompt(text: string): Int32Array;
  /** The text of tokens, special ones left out; bytes that are no UTF-8 become U+FFFD. */
  decode(ids: readonly number[]): string;
}

/**
 * The tokenizer of a model directory: tokenizer.json and, where there is one, tokenizer_config.json. Text is encoded in
 * pieces of 200,000 code points. Throws LPQ_CONFIG.
 */
export function openTokenizer(dir: string): Encode {
  const codec = openCodec(dir);
  return (text) => codec.encode(text);
}

/** The same in both directions. Throws LPQ_CONFIG. */
export function openCodec(dir: string): Codec {
  const file = path.join(dir, 'tokenizer.json');
  if (!existsSync(file)) {
    const other = ['tokenizer.model', 'vocab.json', 'spiece.model'].filter((name) => existsSync(path.join(dir, name)));
    throw new LpqError('LPQ_CONFIG', `${dir} has no tokenizer.json, without which text cannot be read`, {
      got: other.length > 0 ? other.join(', ') : 'no tokenizer file',
      hint: 'Copy tokenizer.json from the model you started with; AutoTokenizer.save_pretrained writes it.',
    });
  }
  const settings = path.join(dir, 'tokenizer_config.json');
  const json = readObject(file);
  const config = existsSync(settings) ? readObject(settings) : {};
  let tokenizer: Tokenizer;
  try {
    tokenizer = new Tokenizer(json, config);
  } catch (cause) {
    throw new LpqError('LPQ_CONFIG', `${file} is not a tokenizer that lpq can run: ${(cause as Error).message}`, {
      cause,
    });
  }
  /** Some of a tokenizer's settings are looked at only when text meets them. */
  const guarded = <T>(what: string, work: () => T): T => {
    try {
      return work();
    } catch (cause) {
      throw new LpqError('LPQ_CONFIG', `${file} cannot ${what}: ${(cause as Error).message}`, { cause });
    }
  };
  const idsOf = (text: string, special: boolean): readonly number[] =>
    guarded('encode a text', () => tokenizer.encode(text, { add_special_tokens: special }).ids);
  return {
    encode(text) {
      const pieces = cut(text, PIECE_CHARACTERS).map((piece) => idsOf(piece, false));
      const ids = new Int32Array(pieces.reduce((sum, piece) => sum + piece.length, 0));
      let at = 0;
      for (const piece of pieces) {
        ids.set(piece, at);
        at += piece.length;
      }
      return ids;
    },
    encodePrompt: (text) => Int32Array.from(idsOf(text, true)),
    decode: (ids) =>
      ids.length === 0
        ? ''
        : guarded('decode tokens', () =>
            tokenizer.decode([...ids], { skip_special_tokens: true, clean_up_tokenization_spaces: false }),
          ),
  };
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

function readObject(file: string): object {
  try {
    const value: unknown = JSON.parse(readRegularText(file));
    if (typeof value === 'object' && value !== null && !Array.isArray(value)) return value;
  } catch (cause) {
    throw new LpqError('LPQ_CONFIG', `${file} is not valid JSON: ${(cause as Error).message}`, { cause });
  }
  throw new LpqError('LPQ_CONFIG', `${file} does not hold an object`);
}
