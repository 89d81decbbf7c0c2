import { ChatTemplate } from '../calibrate/chat.js';
import { type BosMode, openPrefix } from '../calibrate/prefix.js';
import { readTextFile } from '../calibrate/read-text.js';
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
}

/**
 * Windows of `ctx` tokens without overlap, the last partial one left out, with the tokenizer and the chat template of `dir`. Throws
 * LPQ_CALIBRATION_TEXT when there is no window, LPQ_USAGE for windows that leave nothing to score, LPQ_CONFIG, and what encoding throws.
 */
export async function textWindows(
  dir: string,
  file: string,
  { ctx, bos = 'auto' }: WindowOptions,
): Promise<TextWindows> {
  checkCtx(ctx);
  const { name, ...source } = readTextFile(file);
  const prefix = openPrefix(dir, bos).ids;
  requireRoom(ctx, prefix, 2);
  const ids = await encodeAll({ name, ...source }, await openTokenizer(dir), () => ChatTemplate.open(dir));
  return {
    text: name,
    sha256: source.sha256,
    ctx,
    prefix: [...prefix],
    windows: cutWindows(ids, ctx, file, prefix),
  };
}

/** Throws LPQ_USAGE. */
export function checkCtx(ctx: number): number {
  if (Number.isSafeInteger(ctx) && ctx >= 2) return ctx;
  throw new LpqError('LPQ_USAGE', 'the context length must be an integer of at least 2', { got: ctx });
}
