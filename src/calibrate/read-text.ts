import { createHash } from 'node:crypto';
import path from 'node:path';
import { readRegular } from '../../formats/directory/read-file.js';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import type { Conversation } from './chat.js';

/** A text file, read: one running text, documents, or conversations that a chat template has yet to make text. */
export interface TextFile {
  readonly file: string;
  readonly name: string;
  /** Of the file's bytes. */
  readonly sha256: string;
  readonly content:
    | { readonly kind: 'text'; readonly text: string }
    | { readonly kind: 'documents'; readonly documents: readonly string[] }
    | { readonly kind: 'conversations'; readonly conversations: readonly Conversation[] };
}

/**
 * Reads .txt (anything but .jsonl), or .jsonl with {"text": "..."} or with {"messages": [{"role": ..., "content": ...}]}
 * lines. Throws LPQ_FILE, LPQ_CALIBRATION_TEXT.
 */
export function readTextFile(file: string): TextFile {
  tell(`reading ${path.basename(file)}`);
  let bytes: Buffer;
  try {
    bytes = readRegular(file);
  } catch (cause) {
    throw new LpqError('LPQ_FILE', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
  let text: string;
  try {
    text = new TextDecoder('utf-8', { fatal: true }).decode(bytes);
  } catch (cause) {
    throw new LpqError('LPQ_CALIBRATION_TEXT', `${file} is not UTF-8 text`, {
      cause,
      hint: 'Convert it, for example with iconv -t UTF-8.',
    });
  }
  const sha256 = createHash('sha256').update(bytes).digest('hex');
  const content = file.endsWith('.jsonl') ? linesOf(text, file) : ({ kind: 'text', text } as const);
  return { file, name: path.basename(file), sha256, content };
}

function linesOf(text: string, file: string): TextFile['content'] {
  const documents: string[] = [];
  const conversations: Conversation[] = [];
  text.split('\n').forEach((line, i) => {
    if (line.trim() === '') return;
    let record: unknown;
    try {
      record = JSON.parse(line);
    } catch (cause) {
      throw bad(file, i, 'is not JSON', line, cause);
    }
    const { text: document, messages } = (record ?? {}) as { text?: unknown; messages?: unknown };
    if (typeof document === 'string') documents.push(document);
    else if (messages !== undefined) conversations.push(conversationOf(record as object, file, i, line));
    else throw bad(file, i, 'has no string under "text" and no list under "messages"', line);
    if (documents.length > 0 && conversations.length > 0)
      throw bad(file, i, 'differs in kind from the lines before it', line, undefined, 'one kind of line in a file');
  });
  return conversations.length > 0 ? { kind: 'conversations', conversations } : { kind: 'documents', documents };
}

function conversationOf(record: object, file: string, line: number, text: string): Conversation {
  const { messages, tools, documents, chat_template_kwargs: variables } = record as Record<string, unknown>;
  const turns = Array.isArray(messages) && messages.length > 0 && messages.every(isMessage) ? messages : undefined;
  if (!turns) throw bad(file, line, 'has "messages" that are not a conversation', text);
  for (const [name, value] of Object.entries({ tools, documents }))
    if (value !== undefined && value !== null && !Array.isArray(value))
      throw bad(file, line, `has "${name}" that is not a list`, text, undefined, `"${name}": [...]`);
  if (variables !== undefined && variables !== null && (typeof variables !== 'object' || Array.isArray(variables)))
    throw bad(file, line, 'has "chat_template_kwargs" that is not an object', text, undefined, '{"NAME": VALUE}');
  return {
    line: line + 1,
    messages: turns,
    // An empty list is none.
    ...(Array.isArray(tools) && tools.length > 0 && { tools }),
    ...(Array.isArray(documents) && documents.length > 0 && { documents }),
    ...(variables ? { variables: variables as Record<string, unknown> } : {}),
  };
}

/** content may be absent (a turn that only calls tools), or structured: parts, or the result of a tool. */
function isMessage(value: unknown): value is Record<string, unknown> {
  if (typeof value !== 'object' || value === null) return false;
  const { role, content } = value as Record<string, unknown>;
  return typeof role === 'string' && (content == null || ['string', 'object'].includes(typeof content));
}

function bad(
  file: string,
  line: number,
  what: string,
  got: string,
  cause?: unknown,
  expected = '{"text": "..."} or {"messages": [{"role": "...", "content": "..."}]}',
): LpqError {
  return new LpqError('LPQ_CALIBRATION_TEXT', `line ${line + 1} of ${file} ${what}`, {
    got: got.length > 60 ? `${got.slice(0, 60)}...` : got,
    expected,
    cause,
  });
}
