import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import path from 'node:path';
import { LpqError } from '../core/error.js';

/** A text file, read: one running text, or documents. */
export interface TextFile {
  readonly file: string;
  readonly name: string;
  /** Of the file's bytes. */
  readonly sha256: string;
  readonly content:
    | { readonly kind: 'text'; readonly text: string }
    | { readonly kind: 'documents'; readonly documents: readonly string[] };
}

/** Reads .txt (anything but .jsonl) or .jsonl with {"text": "..."} lines. Throws LPQ_FILE, LPQ_CALIBRATION_TEXT. */
export function readTextFile(file: string): TextFile {
  let bytes: Buffer;
  try {
    bytes = readFileSync(file);
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
  const content = file.endsWith('.jsonl')
    ? ({ kind: 'documents', documents: documentsOf(text, file) } as const)
    : ({ kind: 'text', text } as const);
  return { file, name: path.basename(file), sha256, content };
}

function documentsOf(text: string, file: string): string[] {
  const documents: string[] = [];
  text.split('\n').forEach((line, i) => {
    if (line.trim() === '') return;
    let record: unknown;
    try {
      record = JSON.parse(line);
    } catch (cause) {
      throw bad(file, i, 'is not JSON', line, cause);
    }
    const document = (record as { text?: unknown } | null)?.text;
    if (typeof document !== 'string') throw bad(file, i, 'has no string under "text"', line);
    documents.push(document);
  });
  return documents;
}

function bad(file: string, line: number, what: string, got: string, cause?: unknown): LpqError {
  return new LpqError('LPQ_CALIBRATION_TEXT', `line ${line + 1} of ${file} ${what}`, {
    got: got.length > 60 ? `${got.slice(0, 60)}...` : got,
    expected: '{"text": "..."}',
    cause,
  });
}
