import { ChatTemplate } from '../calibrate/chat.js';
import { type BosMode, openPrefix } from '../calibrate/prefix.js';
import { readTextFile, type TextFile } from '../calibrate/read-text.js';
import { cutWindows, encodeAll, requireRoom } from '../calibrate/text.js';
import { openTokenizer } from '../calibrate/tokenizer.js';
import { LpqError } from '../core/error.js';

/** A text as a model is scored on it. */
export interface TextWindows {
  /** Name and sha256 of the file. */
  readonly text: string;
  readonly sha256: string;
  /** Tokens of a window, the prefix among them. */
  readonly ctx: number;
  /** Ids that every window begins with, as the tokenizer of the model begins a text; often none. */
  readonly prefix: readonly number[];
  readonly windows: readonly Int32Array[];
}

export interface WindowOptions {
  readonly ctx: number;
  /** Default: auto. */
  readonly bos?: BosMode | undefined;
  /** The first so many alone are wanted; default all. */
  readonly windows?: number | undefined;
}

/** Characters that hold a token at most, as a rule: of a text of which few windows are wanted, so many a token are encoded. */
const MOST_CHARACTERS = 16;
/** Tokens at its end that are not looked at. */
const CHANGED_BY_A_CUT = 64;

/**
 * Windows of `ctx` tokens without overlap, the last partial one left out, with the tokenizer and the chat template of `dir`. Throws
 * LPQ_CALIBRATION_TEXT when there is no window, LPQ_USAGE for windows that leave nothing to score, LPQ_CONFIG, and what encoding throws.
 */
export async function textWindows(
  dir: string,
  file: string,
  { ctx, bos = 'auto', windows }: WindowOptions,
): Promise<TextWindows> {
  checkCtx(ctx);
  const { name, ...source } = readTextFile(file);
  const prefix = openPrefix(dir, bos).ids;
  requireRoom(ctx, prefix, 2);
  const tokenizer = await openTokenizer(dir);
  const encode = (content: TextFile['content']) =>
    encodeAll({ name, ...source, content }, tokenizer, () => ChatTemplate.open(dir));
  const wanted = windows === undefined ? undefined : windows * ctx;
  const begun = wanted === undefined ? undefined : beginning(source.content, wanted * MOST_CHARACTERS);
  let ids = begun && (await encode(begun));
  // What follows a cut may change the tokens just before it.
  if (ids === undefined || ids.length < (wanted as number) + CHANGED_BY_A_CUT) ids = await encode(source.content);
  return {
    text: name,
    sha256: source.sha256,
    ctx,
    prefix: [...prefix],
    windows: cutWindows(ids, ctx, file, prefix).slice(0, windows),
  };
}

/** The first lines of a text, some `characters`; undefined where that is all of it. */
function beginning(content: TextFile['content'], characters: number): TextFile['content'] | undefined {
  if (content.kind !== 'text' || content.text.length <= 2 * characters) return undefined;
  const end = content.text.indexOf('\n', characters);
  return end < 0 ? undefined : { ...content, text: content.text.slice(0, end + 1) };
}

/** Throws LPQ_USAGE. */
export function checkCtx(ctx: number): number {
  if (Number.isSafeInteger(ctx) && ctx >= 2) return ctx;
  throw new LpqError('LPQ_USAGE', 'the context length must be an integer of at least 2', { got: ctx });
}
