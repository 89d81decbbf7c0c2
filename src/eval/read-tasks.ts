import { createHash } from 'node:crypto';
import path from 'node:path';
import { readRegular } from '../../formats/directory/read-file.js';
import { LpqError } from '../core/error.js';

/** A question with answers to choose from. */
export interface Question {
  /** From 1, for messages. */
  readonly line: number;
  /** Of each choice what comes before it. */
  readonly contexts: readonly string[];
  readonly choices: readonly string[];
  readonly answer: number;
}

/** A text whose last word is asked for. */
export interface Cloze {
  readonly line: number;
  readonly context: string;
  /** With the white space before it. */
  readonly word: string;
}

export interface TaskFile<T> {
  readonly name: string;
  /** Of the file's bytes. */
  readonly sha256: string;
  readonly items: readonly T[];
}

/**
 * .jsonl of {"context": "...", "choices": ["...", ...], "answer": 0} lines: a choice follows the context as it stands, spaces included.
 * "contexts", one for each choice, in the place of "context" where the choices stand within a text (Winogrande). Throws LPQ_FILE,
 * LPQ_CALIBRATION_TEXT naming the line.
 */
export function readQuestions(file: string): TaskFile<Question> {
  const expected = '{"context": "...", "choices": ["...", "..."], "answer": 0}';
  return readLines(file, expected, (record, line) => {
    const { context, contexts, choices, answer } = record;
    const texts = (value: unknown): value is string[] =>
      Array.isArray(value) && value.length >= 2 && value.every((text) => typeof text === 'string' && text !== '');
    if (!texts(choices) || !Number.isSafeInteger(answer)) return undefined;
    if ((answer as number) < 0 || (answer as number) >= choices.length) return undefined;
    if (context !== undefined && contexts !== undefined) return undefined;
    const before = typeof context === 'string' ? choices.map(() => context) : contexts;
    if (!Array.isArray(before) || before.length !== choices.length) return undefined;
    if (!before.every((text) => typeof text === 'string')) return undefined;
    return { line, contexts: before, choices, answer: answer as number };
  });
}

/** .jsonl of {"text": "..."} lines of at least two words. Throws LPQ_FILE, LPQ_CALIBRATION_TEXT naming the line. */
export function readClozes(file: string): TaskFile<Cloze> {
  return readLines(file, '{"text": "..."} with two words or more', ({ text }, line) => {
    const found = typeof text === 'string' ? /^(.*\S)(\s+\S+)\s*$/su.exec(text) : null;
    return found ? { line, context: found[1] as string, word: found[2] as string } : undefined;
  });
}

function readLines<T>(
  file: string,
  expected: string,
  parse: (record: Record<string, unknown>, line: number) => T | undefined,
): TaskFile<T> {
  let bytes: Buffer;
  try {
    bytes = readRegular(file);
  } catch (cause) {
    throw new LpqError('LPQ_FILE', `${file} cannot be read: ${(cause as Error).message}`, { cause });
  }
  const items = bytes
    .toString('utf8')
    .split('\n')
    .flatMap((text, i) => {
      if (text.trim() === '') return [];
      const item = parse(objectOf(text), i + 1);
      if (item !== undefined) return [item];
      throw new LpqError('LPQ_CALIBRATION_TEXT', `line ${i + 1} of ${file} has not the form of a question`, {
        got: text.length > 60 ? `${text.slice(0, 60)}...` : text,
        expected,
      });
    });
  if (items.length === 0) throw new LpqError('LPQ_CALIBRATION_TEXT', `${file} holds no question`, { expected });
  return { name: path.basename(file), sha256: createHash('sha256').update(bytes).digest('hex'), items };
}

function objectOf(text: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(text);
    if (typeof value === 'object' && value !== null) return value as Record<string, unknown>;
  } catch {
    // No record: the caller says what was expected.
  }
  return {};
}
