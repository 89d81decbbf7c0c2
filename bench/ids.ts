import { createHash } from 'node:crypto';
import path from 'node:path';
import { readJson } from '../formats/directory/read-file.js';
import { Random } from '../src/calibrate/random.js';
import { type Calibration, cutWindows } from '../src/calibrate/text.js';
import { LpqError } from '../src/core/error.js';

export interface IdOptions {
  readonly samples: number;
  readonly length: number;
  readonly seed: number;
  readonly vocab: number;
}

/** Calibration sequences of uniformly random tokens: a synthetic model has no tokenizer and understands nothing anyway. */
export function randomIds({ samples, length, seed, vocab }: IdOptions): Calibration {
  const random = new Random(seed);
  const sequences = Array.from({ length: samples }, () => Int32Array.from({ length }, () => random.below(vocab)));
  return describe('random', sequences, { seed, length, available: samples });
}

/**
 * Sequences from a JSON file: a list of token ids, cut into windows, or a list of such lists, each cut at `length`; the
 * first `samples` of them. Throws LPQ_FILE, and LPQ_CALIBRATION_TEXT for what is no list of ids of the vocabulary.
 */
export function readIds(file: string, { samples, length, seed, vocab }: IdOptions): Calibration {
  const value = readJson(file, 'LPQ_FILE');
  const all =
    Array.isArray(value) && value.every(Array.isArray)
      ? value.map((list: unknown[]) => checkIds(file, list, vocab).slice(0, length)).filter((ids) => ids.length > 0)
      : cutWindows(checkIds(file, value, vocab), length, file);
  const sequences = all.slice(0, samples);
  if (sequences.length === 0) throw new LpqError('LPQ_CALIBRATION_TEXT', `${file} holds no token ids`);
  return describe(path.basename(file), sequences, { seed, length, available: all.length });
}

function checkIds(file: string, value: unknown, vocab: number): Int32Array {
  const wrong = Array.isArray(value)
    ? value.find((id) => !Number.isSafeInteger(id) || (id as number) < 0 || (id as number) >= vocab)
    : value;
  if (!Array.isArray(value) || wrong !== undefined)
    throw new LpqError('LPQ_CALIBRATION_TEXT', `${file} is not a list of token ids`, {
      got: JSON.stringify(wrong)?.slice(0, 60),
      expected: `integers from 0 to ${vocab - 1}, or lists of them`,
    });
  return Int32Array.from(value as number[]);
}

function describe(
  name: string,
  sequences: readonly Int32Array[],
  facts: Pick<Calibration, 'seed' | 'length' | 'available'>,
): Calibration {
  const hash = createHash('sha256');
  for (const ids of sequences) hash.update(new Uint8Array(ids.buffer, ids.byteOffset, ids.byteLength));
  const tokens = sequences.reduce((sum, { length }) => sum + length, 0);
  return { name, sha256: hash.digest('hex'), kind: 'windows', sequences, tokens, ...facts };
}
