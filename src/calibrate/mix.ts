import { createHash } from 'node:crypto';
import { existsSync } from 'node:fs';
import { LpqError } from '../core/error.js';
import { Random } from './random.js';
import { type Calibration, type CalibrationOptions, loadCalibration } from './text.js';
import type { Encode } from './tokenizer.js';

/** A calibration file and how much of the samples it shall give, relative to the others. */
export interface WeightedFile {
  readonly file: string;
  readonly weight: number;
}

/**
 * FILE or FILE:WEIGHT. A path that exists as it stands is taken as it stands, whatever it ends in. Throws LPQ_USAGE for a
 * weight that is not positive.
 */
export function parseWeighted(given: string): WeightedFile {
  const split = /^(.+):([^:/]*)$/.exec(given);
  if (!split || existsSync(given) || !/^[-+.\d]/.test(split[2] as string)) return { file: given, weight: 1 };
  const [, file = '', text = ''] = split;
  const weight = Number(text);
  if (Number.isFinite(weight) && weight > 0) return { file, weight };
  throw new LpqError('LPQ_USAGE', `--calib does not take the weight of '${given}'`, {
    got: text,
    expected: 'a number above 0, for example --calib chat.jsonl:0.7 --calib books.txt:0.3',
  });
}

/**
 * Chooses calibration sequences from one file or from several, each of which gives its share of `samples`, as far as it
 * has so many. What a file gives depends on the seed and its share alone; a shuffle by the seed then mixes them, so that
 * every batch is a sample of all. Throws what loadCalibration() does, and LPQ_USAGE for a file that is given twice or
 * whose share is no sample.
 */
export async function loadMix(
  files: readonly WeightedFile[],
  encode: Encode,
  options: CalibrationOptions,
): Promise<Calibration> {
  const [first] = files;
  if (!first) throw new LpqError('LPQ_INTERNAL', 'calibration needs a file');
  if (files.length === 1) return loadCalibration(first.file, encode, options);
  const { samples, length, seed, further = 0 } = options;
  const shares = sharesOf(files, samples);
  const more = further > 0 ? sharesOf(files, Math.max(further, files.length), false) : undefined;
  const parts: Calibration[] = [];
  for (const [i, { file }] of files.entries())
    parts.push(
      await loadCalibration(file, encode, {
        ...{ ...options, samples: shares[i] as number },
        ...(more && { further: more[i] as number }),
      }),
    );
  const twice = parts.findIndex(({ sha256 }, i) => parts.findIndex((other) => other.sha256 === sha256) < i);
  if (twice >= 0)
    throw new LpqError('LPQ_USAGE', `--calib ${files[twice]?.file} is the same text as another one`, {
      hint: 'Give each text once, with the sum of the weights.',
    });
  const ordered = parts.flatMap(({ sequences }) => sequences);
  const sequences = [...new Random(seed).shuffled(ordered.length)].map((index) => ordered[index] as Int32Array);
  const rest = parts.flatMap((part) => part.further ?? []);
  const prefix = parts.find((part) => part.prefix !== undefined)?.prefix;
  const chatTemplate = parts.find((part) => part.chatTemplate !== undefined)?.chatTemplate;
  return {
    name: parts.map(({ name }, i) => `${name}:${files[i]?.weight}`).join(' + '),
    sha256: createHash('sha256')
      .update(parts.map(({ sha256 }, i) => `${sha256} ${files[i]?.weight}\n`).join(''))
      .digest('hex'),
    seed,
    length,
    kind: 'mix',
    sequences,
    tokens: parts.reduce((sum, { tokens }) => sum + tokens, 0),
    available: parts.reduce((sum, { available }) => sum + available, 0),
    ...(further > 0 && { further: [...new Random(seed).shuffled(rest.length)].map((i) => rest[i] as Int32Array) }),
    ...(prefix && { prefix }),
    ...(chatTemplate !== undefined && { chatTemplate }),
    files: parts.map(({ name, sha256, sequences: { length: given }, tokens }, i) => ({
      name,
      sha256,
      weight: files[i]?.weight as number,
      sequences: given,
      tokens,
    })),
  };
}

/**
 * Samples by the largest remainder (Hamilton): they add up, and none is off by one or more; the first of equals wins. Throws LPQ_USAGE for
 * a file that would give none, if each `must`.
 */
export function sharesOf(files: readonly WeightedFile[], samples: number, must = true): number[] {
  const sum = files.reduce((total, { weight }) => total + weight, 0);
  const exact = files.map(({ weight }) => (samples * weight) / sum);
  const shares = exact.map(Math.floor);
  const left = samples - shares.reduce((total, share) => total + share, 0);
  const remainder = (i: number) => (exact[i] as number) - (shares[i] as number);
  const order = exact.map((_, i) => i).sort((a, b) => remainder(b) - remainder(a) || a - b);
  for (const i of order.slice(0, left)) shares[i] = (shares[i] as number) + 1;
  const none = shares.indexOf(0);
  if (none < 0 || !must) return shares;
  throw new LpqError('LPQ_USAGE', `--calib ${files[none]?.file} is to give none of the ${samples} sequences`, {
    got: `weight ${files[none]?.weight} of ${sum}`,
    hint: 'Raise its weight or --samples, or leave it out.',
  });
}
