import { LpqError } from '../core/error.js';
import { Random } from './random.js';
import { readTextFile, type TextFile } from './read-text.js';
import type { Encode } from './tokenizer.js';

export interface CalibrationOptions {
  /** Sequences wanted. */
  readonly samples: number;
  /** Tokens of a window; the most of a document. */
  readonly length: number;
  readonly seed: number;
  /** For .jsonl: join the documents and cut windows, as of a text. */
  readonly join?: boolean;
}

/** What a model is calibrated on; all of it but the tokens themselves is recorded in the output's provenance. */
export interface Calibration {
  readonly name: string;
  readonly sha256: string;
  readonly seed: number;
  readonly length: number;
  readonly kind: 'windows' | 'documents';
  readonly sequences: readonly Int32Array[];
  /** Tokens of all sequences. */
  readonly tokens: number;
  /** Windows or documents that there were to choose from. */
  readonly available: number;
}

/**
 * Chooses calibration sequences from a text file. A text is cut into windows of `length` tokens without overlap, its
 * last partial window left out; documents are sequences of their own length, cut at `length`, neither padded nor joined.
 * `samples` of them are taken in the order of a shuffle by `seed` (random.ts), all where there are fewer.
 * Throws LPQ_CALIBRATION_TEXT when there is no window, LPQ_USAGE, LPQ_FILE.
 */
export function loadCalibration(file: string, encode: Encode, options: CalibrationOptions): Calibration {
  const { samples, length, seed } = options;
  atLeastOne('samples', samples);
  atLeastOne('length', length);
  const random = new Random(seed);
  const source = readTextFile(file);
  const { kind, available, sequences } =
    source.content.kind === 'documents' && options.join !== true
      ? chooseDocuments(source.content.documents, encode, samples, length, random)
      : chooseWindows(source, encode, samples, length, random);
  if (sequences.length === 0)
    throw new LpqError('LPQ_CALIBRATION_TEXT', `${file} holds no document with a token in it`, {
      got: `${available} documents`,
    });
  const tokens = sequences.reduce((sum, sequence) => sum + sequence.length, 0);
  return { name: source.name, sha256: source.sha256, seed, length, kind, sequences, tokens, available };
}

interface Choice {
  readonly kind: Calibration['kind'];
  readonly available: number;
  readonly sequences: Int32Array[];
}

function chooseWindows(source: TextFile, encode: Encode, samples: number, length: number, random: Random): Choice {
  const windows = cutWindows(encodeAll(source, encode), length, source.file);
  const sequences: Int32Array[] = [];
  for (const index of random.shuffled(windows.length)) {
    if (sequences.length === samples) break;
    sequences.push(windows[index] as Int32Array);
  }
  return { kind: 'windows', available: windows.length, sequences };
}

function chooseDocuments(
  documents: readonly string[],
  encode: Encode,
  samples: number,
  length: number,
  random: Random,
): Choice {
  const sequences: Int32Array[] = [];
  for (const index of random.shuffled(documents.length)) {
    if (sequences.length === samples) break;
    const ids = encode(documents[index] as string);
    if (ids.length > 0) sequences.push(ids.slice(0, length));
  }
  return { kind: 'documents', available: documents.length, sequences };
}

/** All tokens of a file; documents joined as they stand. */
export function encodeAll(source: TextFile, encode: Encode): Int32Array {
  if (source.content.kind === 'text') return encode(source.content.text);
  const parts = source.content.documents.map(encode);
  const ids = new Int32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    ids.set(part, at);
    at += part.length;
  }
  return ids;
}

/** Consecutive windows of `length` tokens, without the partial last one. Throws LPQ_CALIBRATION_TEXT when there is none. */
export function cutWindows(ids: Int32Array, length: number, file: string): Int32Array[] {
  const count = Math.floor(ids.length / length);
  if (count === 0)
    throw new LpqError('LPQ_CALIBRATION_TEXT', `${file} is shorter than one window`, {
      got: `${ids.length} tokens`,
      expected: `at least ${length} tokens`,
      hint: 'Use a longer text or shorter windows.',
    });
  return Array.from({ length: count }, (_, i) => ids.subarray(i * length, (i + 1) * length));
}

function atLeastOne(option: string, value: number): void {
  if (Number.isSafeInteger(value) && value >= 1) return;
  throw new LpqError('LPQ_USAGE', `${option} must be a positive integer`, { got: value });
}
