import type { NativeRuntime } from '../../native/binding.js';
import { inOrder } from '../calibrate/confined/ahead.js';
import { type BosMode, openPrefix, type Prefix, withPrefix } from '../calibrate/prefix.js';
import { type Codec, openCodec } from '../calibrate/tokenizer.js';
import { LpqError } from '../core/error.js';
import { contextLength } from '../model/context.js';
import type { WeightSource } from '../model/source.js';
import { type Estimate, estimate } from './estimate.js';
import { type Continuation, type LikelihoodOptions, likelihoods } from './likelihood.js';
import { type Question, readClozes, readQuestions } from './read-tasks.js';

export interface ChoicesResult {
  readonly text: string;
  readonly sha256: string;
  /** Ids that every context begins with. */
  readonly prefix: readonly number[];
  readonly questions: number;
  /** How often the likeliest choice is the right one. */
  readonly accuracy: Estimate;
  /** The same of the choice with the highest log-likelihood a character. */
  readonly normalised: Estimate;
}

export interface LastWordResult {
  readonly text: string;
  readonly sha256: string;
  readonly prefix: readonly number[];
  readonly words: number;
  /** How often every token of the word is the likeliest. */
  readonly accuracy: Estimate;
  /** exp of the mean negative log-likelihood of a word. */
  readonly perplexity: Estimate;
}

interface TaskOptions extends Pick<LikelihoodOptions, 'onProgress'> {
  /** What contexts begin with, default auto. */
  readonly bos?: BosMode | undefined;
}

/**
 * Multiple choice as lm-eval scores it: the log-likelihood of each choice behind its context; `normalised` divides it by the choice's
 * characters (code points). Of equals the first counts. Throws what readQuestions and likelihoods throw, LPQ_CONTEXT naming the line.
 */
export async function evaluateChoices(
  rt: NativeRuntime,
  source: WeightSource,
  file: string,
  { bos = 'auto', ...options }: TaskOptions = {},
): Promise<ChoicesResult> {
  const { name, sha256, items } = readQuestions(file);
  const reader = { codec: await openCodec(source.dir), prefix: openPrefix(source.dir, bos) };
  const most = contextLength(source).tokens;
  const asked = await inOrder(
    items.flatMap(({ line, contexts, choices }) =>
      choices.map((choice, i) => ({ line, context: contexts[i] as string, choice })),
    ),
    ({ line, context, choice }) => continuationOf(reader, context, choice, most, `line ${line} of ${file}`),
    `encoding ${name}`,
  );
  const found = await likelihoods(rt, source, asked, options);
  let at = 0;
  const right = items.map((question) => {
    const sums = question.choices.map(() => (found[at++] as { sum: number }).sum);
    return judge(question, sums);
  });
  return {
    text: name,
    sha256,
    prefix: [...reader.prefix.ids],
    questions: items.length,
    accuracy: estimate(right.map(({ plain }) => plain)),
    normalised: estimate(right.map(({ normalised }) => normalised)),
  };
}

/** 1 where the right choice is the first of those with the highest score. */
export function judge(
  { choices, answer }: Pick<Question, 'choices' | 'answer'>,
  sums: readonly number[],
): { readonly plain: 0 | 1; readonly normalised: 0 | 1 } {
  const best = (scores: readonly number[]) => scores.indexOf(Math.max(...scores));
  const perCharacter = sums.map((sum, i) => sum / [...(choices[i] as string)].length);
  return { plain: best(sums) === answer ? 1 : 0, normalised: best(perCharacter) === answer ? 1 : 0 };
}

/**
 * Last words as in LAMBADA (Paperno et al. 2016): whether the model would write the word, token by token, and how likely it finds it.
 * Throws what readClozes and likelihoods throw, LPQ_CONTEXT naming the line.
 */
export async function evaluateLastWords(
  rt: NativeRuntime,
  source: WeightSource,
  file: string,
  { bos = 'auto', ...options }: TaskOptions = {},
): Promise<LastWordResult> {
  const { name, sha256, items } = readClozes(file);
  const reader = { codec: await openCodec(source.dir), prefix: openPrefix(source.dir, bos) };
  const most = contextLength(source).tokens;
  const asked = await inOrder(
    items,
    ({ line, context, word }) => continuationOf(reader, context, word, most, `line ${line} of ${file}`),
    `encoding ${name}`,
  );
  const found = await likelihoods(rt, source, asked, { ...options, greedy: true });
  const nll = estimate(found.map(({ sum }) => -sum));
  const mean = Math.exp(nll.mean);
  return {
    text: name,
    sha256,
    prefix: [...reader.prefix.ids],
    words: items.length,
    accuracy: estimate(found.map(({ greedy }) => (greedy ? 1 : 0))),
    perplexity: { mean, error: nll.error === null ? null : mean * nll.error },
  };
}

interface Reader {
  readonly codec: Codec;
  readonly prefix: Prefix;
}

/**
 * Tokens of both together, with those that stand before a text; asked about are those behind the context's own. White space
 * at the context's end goes to the continuation, where tokenizers have it.
 */
async function continuationOf(
  { codec, prefix }: Reader,
  given: string,
  after: string,
  most: number,
  place: string,
): Promise<Continuation> {
  const context = given.trimEnd();
  const [ids, before] = await Promise.all(
    [context + given.slice(context.length) + after, context].map(async (text) =>
      withPrefix(await codec.encode(text), prefix.ids),
    ) as [Promise<Int32Array>, Promise<Int32Array>],
  );
  const known = Math.min(before.length, ids.length - 1);
  if (known < 1)
    throw new LpqError('LPQ_CALIBRATION_TEXT', `${place} has no context before the answer`, {
      got: JSON.stringify(given),
      expected: 'a context of at least one token',
    });
  if (ids.length <= most) return { ids, asked: ids.length - known };
  throw new LpqError('LPQ_CONTEXT', `${place} is longer than the model allows`, {
    got: `${ids.length} tokens`,
    expected: `at most ${most}`,
    hint: 'Leave the line out.',
  });
}
