import { readRegular } from '../../formats/directory/read-file.js';
import { ChatTemplate, type Conversation } from '../calibrate/chat.js';
import { inOrder } from '../calibrate/confined/ahead.js';
import type { Codec } from '../calibrate/tokenizer.js';
import { LpqError } from '../core/error.js';

/** What a sequence starts with. */
export interface Prompt {
  /** As the model sees it, but for special tokens that the tokenizer adds. */
  readonly text: string;
  readonly ids: Int32Array;
}

/** A prompt as it was given: a text to go on from, or a conversation to answer. */
export type Given = string | Conversation;

export interface PromptOptions {
  /** Texts are the user's side of a conversation. */
  readonly chat?: boolean;
  /** What the conversation begins with, in the role of the system. */
  readonly system?: string | undefined;
}

/**
 * Reads a .jsonl of {"prompt": "..."} or {"messages": [...]} lines; any other file is one prompt, its last line end left out.
 * Throws LPQ_FILE, LPQ_USAGE naming the line.
 */
export function readPrompts(file: string): Given[] {
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(readRegular(file));
  } catch (cause) {
    throw new LpqError('LPQ_FILE', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
  if (!file.endsWith('.jsonl')) return [text.replace(/\r?\n$/, '')];
  return text.split('\n').flatMap((line, i) => (line.trim() === '' ? [] : [promptOf(line, i + 1, file)]));
}

function promptOf(text: string, line: number, file: string): Given {
  const refuse = (cause?: unknown) =>
    new LpqError('LPQ_USAGE', `line ${line} of ${file} is not a prompt`, {
      got: text.length > 60 ? `${text.slice(0, 60)}...` : text,
      expected: '{"prompt": "..."} or {"messages": [{"role": "...", "content": "..."}]}',
      cause,
    });
  let record: { prompt?: unknown; messages?: unknown } | null;
  try {
    record = JSON.parse(text);
  } catch (cause) {
    throw refuse(cause);
  }
  const { prompt, messages } = record ?? {};
  if (typeof prompt === 'string') return prompt;
  const turns = Array.isArray(messages) && messages.length > 0 ? (messages as unknown[]) : undefined;
  if (!turns?.every((turn) => typeof (turn as { role?: unknown } | null)?.role === 'string')) throw refuse();
  return { line, messages: turns as Record<string, unknown>[] };
}

/**
 * The tokens of prompts: texts with the special tokens that the tokenizer adds, conversations as the model's chat template prints
 * them, an answer opened. Throws LPQ_USAGE for a prompt without a token, LPQ_CONFIG where the model has no chat template,
 * LPQ_CALIBRATION_TEXT where that refuses a conversation, and what encoding throws.
 */
export async function encodePrompts(
  dir: string,
  codec: Codec,
  given: readonly Given[],
  options: PromptOptions,
): Promise<Prompt[]> {
  let template: Promise<ChatTemplate> | undefined;
  const encoded = async (one: Given, i: number): Promise<Prompt> => {
    const conversation = typeof one === 'string' ? options.chat && asConversation(one, i + 1) : one;
    if (!conversation) return withTokens(one as string, await codec.encodePrompt(one as string), i);
    template ??= ChatTemplate.open(dir);
    const { system } = options;
    const messages = [...(system === undefined ? [] : [{ role: 'system', content: system }]), ...conversation.messages];
    const text = await (await template).render({ ...conversation, messages }, 'the prompts', true);
    // The template has printed the special tokens.
    return withTokens(text, await codec.encode(text), i);
  };
  return inOrder(given, encoded, 'encoding prompts');
}

function asConversation(content: string, line: number): Conversation {
  return { line, messages: [{ role: 'user', content }] };
}

function withTokens(text: string, ids: Int32Array, index: number): Prompt {
  if (ids.length > 0) return { text, ids };
  throw new LpqError('LPQ_USAGE', `prompt ${index + 1} has no token, and this tokenizer adds none before a text`, {
    got: JSON.stringify(text),
    hint: 'Give a text to continue.',
  });
}
