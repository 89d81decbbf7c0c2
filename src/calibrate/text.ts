import type { CalibrationRecord } from '../../formats/canonical/schema.js';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import type { ChatTemplate, Conversation } from './chat.js';
import { inOrder } from './confined/ahead.js';
import { beginsWith, withPrefix } from './prefix.js';
import { Random } from './random.js';
import { readTextFile, type TextFile } from './read-text.js';
import type { Encode } from './tokenizer.js';

export interface CalibrationOptions {
  /** Sequences wanted. */
  readonly samples: number;
  /** Tokens of a window, its prefix among them; the most of a document. */
  readonly length: number;
  readonly seed: number;
  /** Sequences wanted beyond these, as far as the text has them. Default: none. */
  readonly further?: number;
  /** Ids that every window and document begins with; conversations too, where `prefixConversations` says so. Default: none. */
  readonly prefix?: Int32Array;
  /** Their template prints what they begin with, so that it is left to that unless this is set. */
  readonly prefixConversations?: boolean;
  /** For .jsonl: join the documents and cut windows, as of a text. */
  readonly join?: boolean;
  /** The model's chat template, asked for when a file holds conversations. */
  readonly chat?: () => Promise<ChatTemplate>;
}

/** One of several files that a model is calibrated on. */
export interface CalibrationFile {
  readonly name: string;
  readonly sha256: string;
  /** As it was given; the file's share of the sequences is this over the sum of all. */
  readonly weight: number;
  readonly sequences: number;
  readonly tokens: number;
}

/** What a model is calibrated on; all of it but the tokens themselves is recorded in the output's provenance. */
export interface Calibration {
  readonly name: string;
  readonly sha256: string;
  readonly seed: number;
  readonly length: number;
  readonly kind: 'windows' | 'documents' | 'conversations' | 'mix';
  readonly sequences: readonly Int32Array[];
  /** Tokens of all sequences. */
  readonly tokens: number;
  /** Those beyond the samples. */
  readonly further?: readonly Int32Array[];
  /** Windows, documents or conversations that there were to choose from. */
  readonly available: number;
  /** Ids that every sequence was made to begin with, where there are any; conversations begin as their template has it. */
  readonly prefix?: readonly number[];
  /** Of the chat template, where conversations went through it. */
  readonly chatTemplate?: string;
  /** Of a mix. */
  readonly files?: readonly CalibrationFile[];
}

/**
 * Chooses calibration sequences from a text file. A text is cut into windows of `length` tokens without overlap, its
 * last partial window left out; documents, and conversations as the chat template prints them, are sequences of their own
 * length, cut at `length`, neither padded nor joined. `samples` of them are taken in the order of a shuffle by `seed`
 * (random.ts), all where there are fewer. Throws LPQ_CALIBRATION_TEXT when there is no window or the template refuses a
 * conversation, LPQ_CONFIG without a template, LPQ_USAGE, LPQ_FILE, and what encoding and rendering throw.
 */
export async function loadCalibration(file: string, encode: Encode, options: CalibrationOptions): Promise<Calibration> {
  const { samples, length, seed, prefix = NONE, further = 0 } = options;
  atLeastOne('samples', samples);
  atLeastOne('length', length);
  requireRoom(length, prefix);
  const random = new Random(seed);
  const source = readTextFile(file);
  const chat = source.content.kind === 'conversations' ? await templateOf(source, options.chat) : undefined;
  const wanted = { ...options, samples: samples + further };
  const choice =
    source.content.kind === 'text' || options.join === true
      ? await chooseWindows(source, encode, wanted, random, chat)
      : await chooseDocuments(source, encode, wanted, random, chat);
  const { kind, available } = choice;
  const sequences = choice.sequences.slice(0, samples);
  if (sequences.length === 0)
    throw new LpqError('LPQ_CALIBRATION_TEXT', `${file} holds no document with a token`, {
      got: `${available} documents`,
    });
  const tokens = sequences.reduce((sum, sequence) => sum + sequence.length, 0);
  const { name, sha256 } = source;
  const begun = prefix.length > 0 && (kind !== 'conversations' || options.prefixConversations === true);
  return {
    ...{ name, sha256, seed, length, kind, sequences, tokens, available },
    ...(further > 0 && { further: choice.sequences.slice(samples) }),
    ...(begun && { prefix: [...prefix] }),
    ...(chat && { chatTemplate: chat.sha256 }),
  };
}

/** What goes into the provenance of what was made with it. */
export function calibrationRecord(calibration: Calibration): CalibrationRecord {
  const { name, sha256, sequences, tokens, further, seed, prefix, chatTemplate, files } = calibration;
  return {
    ...{ name, sha256, sequences: sequences.length, tokens, seed },
    ...(further && {
      further: { sequences: further.length, tokens: further.reduce((sum, { length }) => sum + length, 0) },
    }),
    ...(prefix && { prefix: [...prefix] }),
    ...(chatTemplate !== undefined && { chatTemplate }),
    ...(files && { files: [...files] }),
  };
}

const NONE = new Int32Array();

interface Choice {
  readonly kind: Calibration['kind'];
  readonly available: number;
  readonly sequences: Int32Array[];
}

async function chooseWindows(
  source: TextFile,
  encode: Encode,
  { samples, length, prefix }: CalibrationOptions,
  random: Random,
  chat: ChatTemplate | undefined,
): Promise<Choice> {
  const windows = cutWindows(await encodeAll(source, encode, chat && (async () => chat)), length, source.file, prefix);
  const sequences: Int32Array[] = [];
  for (const index of random.shuffled(windows.length)) {
    if (sequences.length === samples) break;
    sequences.push(windows[index] as Int32Array);
  }
  return { kind: 'windows', available: windows.length, sequences };
}

async function chooseDocuments(
  { file, name, content }: TextFile,
  encode: Encode,
  { samples, length, prefix = NONE, prefixConversations }: CalibrationOptions,
  random: Random,
  chat: ChatTemplate | undefined,
): Promise<Choice> {
  const kind = content.kind === 'conversations' ? 'conversations' : 'documents';
  const all = content.kind === 'conversations' ? content.conversations : documentsOf(content);
  const sequences: Int32Array[] = [];
  for (const index of random.shuffled(all.length)) {
    if (sequences.length === samples) break;
    tell(`encoding ${name}`, sequences.length, samples);
    const one = all[index] as string | Conversation;
    // Rendered only once chosen. A template prints the special tokens itself and encode() adds none: each is there once.
    const ids = await encode(typeof one === 'string' ? one : await (chat as ChatTemplate).render(one, file));
    const before = typeof one === 'string' || prefixConversations ? prefix : NONE;
    if (ids.length > 0) sequences.push(withPrefix(ids, before).slice(0, length));
  }
  return { kind, available: all.length, sequences };
}

function documentsOf(content: Exclude<TextFile['content'], { kind: 'conversations' }>): readonly string[] {
  return content.kind === 'text' ? [content.text] : content.documents;
}

async function templateOf({ file }: TextFile, chat: CalibrationOptions['chat']): Promise<ChatTemplate> {
  if (chat) return chat();
  throw new LpqError('LPQ_CALIBRATION_TEXT', `${file} holds conversations, but no model with a chat template`, {
    expected: '{"text": "..."} lines, or plain text',
  });
}

/** All tokens of a file; documents, and conversations as `chat` prints them, joined as they stand. */
export async function encodeAll(
  source: TextFile,
  encode: Encode,
  chat?: CalibrationOptions['chat'],
): Promise<Int32Array> {
  const { content, file } = source;
  if (content.kind === 'text') {
    tell(`encoding ${source.name}`);
    return encode(content.text);
  }
  const template = content.kind === 'conversations' ? await templateOf(source, chat) : undefined;
  const parts = await inOrder<string | Conversation, Int32Array>(
    content.kind === 'documents' ? content.documents : content.conversations,
    async (one) => encode(typeof one === 'string' ? one : await (template as ChatTemplate).render(one, file)),
    `encoding ${source.name}`,
  );
  const ids = new Int32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    ids.set(part, at);
    at += part.length;
  }
  return ids;
}

/**
 * Consecutive windows of `length` tokens, without the partial last one. Each begins with the `prefix`, which is among its tokens; where
 * the text has it itself at the beginning of a window, it is there once. Throws LPQ_CALIBRATION_TEXT when there is none.
 */
export function cutWindows(ids: Int32Array, length: number, file: string, prefix: Int32Array = NONE): Int32Array[] {
  requireRoom(length, prefix);
  const own = length - prefix.length;
  const windows: Int32Array[] = [];
  for (let at = 0; ; at += own) {
    while (beginsWith(ids, prefix, at)) at += prefix.length;
    if (at + own > ids.length) break;
    windows.push(withPrefix(ids.subarray(at, at + own), prefix));
  }
  if (windows.length > 0) return windows;
  throw new LpqError('LPQ_CALIBRATION_TEXT', `${file} is shorter than one window`, {
    got: `${ids.length} tokens`,
    expected: `at least ${own} tokens`,
    hint: 'Use a longer text or shorter windows.',
  });
}

/** Throws LPQ_USAGE where a prefix leaves no token of a text. */
export function requireRoom(length: number, prefix: Int32Array, least = 1): void {
  if (length - prefix.length >= least) return;
  throw new LpqError(
    'LPQ_USAGE',
    `${length} tokens leave no room for text after the ${prefix.length} tokens that begin a window`,
    { got: length, expected: `at least ${prefix.length + least}`, hint: 'Use longer windows, or --bos never.' },
  );
}

function atLeastOne(option: string, value: number): void {
  if (Number.isSafeInteger(value) && value >= 1) return;
  throw new LpqError('LPQ_USAGE', `${option} must be a positive integer`, { got: value });
}
