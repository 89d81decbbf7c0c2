import { type NativeRuntime, readTyped } from '../../native/binding.js';
import type { Codec } from '../calibrate/tokenizer.js';
import { tell } from '../core/activity.js';
import { LpqError } from '../core/error.js';
import { BATCH_TOKENS } from '../model/batch.js';
import type { ContextLength } from '../model/context.js';
import type { Cache } from './cache.js';
import type { Prompt } from './prompts.js';
import type { ResidentModel } from './resident.js';
import { Sampler, type Sampling } from './sample.js';
import { disposeStep, type Entry, makeStep, runStep } from './step.js';
import { TextStream } from './text-stream.js';
import { TokenSteps } from './token-steps.js';

export interface GenerateOptions {
  readonly sampling: Sampling;
  /** Tokens that are generated at most, for each prompt. */
  readonly maxTokens: number;
  /** Tokens that end a text; they are not part of it. */
  readonly stopTokens: ReadonlySet<number>;
  /** Strings that do. */
  readonly stops: readonly string[];
}

/** Why a sequence ended: a stop token, a stop string, or enough tokens. */
export type Finish = 'eos' | 'stop' | 'length';

export interface Generated {
  readonly prompt: string;
  readonly promptTokens: number;
  readonly text: string;
  /** With the token that ended it, if one did. */
  readonly ids: readonly number[];
  readonly finish: Finish;
  /** The string that ended it. */
  readonly stop?: string;
}

export interface GenerateHooks {
  /** Text that is settled, of one of the prompts. */
  readonly onText?: (prompt: number, text: string) => void;
  readonly onEnd?: (prompt: number, generated: Generated) => void;
  /** Before each step: may throw to stop. */
  readonly onStep?: () => void;
}

export interface Timings {
  /** Seconds until every prompt has its first token, and from then on. */
  readonly prefill: number;
  readonly decode: number;
  /** Tokens of all prompts, and tokens that decode steps made (all but the first of each). */
  readonly promptTokens: number;
  readonly decoded: number;
}

/**
 * How many tokens fit behind the prompts. Throws LPQ_CONTEXT where `asked` are more, or a prompt leaves none.
 */
export function roomFor(
  prompts: readonly Prompt[],
  asked: number | undefined,
  context: ContextLength,
  otherwise: number,
): number {
  const longest = prompts.reduce((most, { ids }) => Math.max(most, ids.length), 0);
  const room = context.tokens - longest;
  if (room < (asked ?? 1))
    throw new LpqError(
      'LPQ_CONTEXT',
      asked === undefined || room < 1
        ? `a prompt of ${longest} tokens leaves no room for an answer`
        : `a prompt of ${longest} tokens and --max-tokens ${asked} exceed the length that the model allows`,
      {
        got: `${longest + (asked ?? 1)} tokens`,
        expected: `at most ${context.tokens}: ${context.because}`,
        hint: room < 1 ? 'Give a shorter prompt.' : `Give a shorter prompt, or --max-tokens ${room}.`,
      },
    );
  return asked ?? Math.min(room, otherwise);
}

/** A sequence under way; its number is that of its prompt, and of its slot of the cache. */
class Sequence {
  readonly ids: number[] = [];
  readonly sampler: Sampler;
  generated: Generated | undefined;

  private constructor(
    readonly number: number,
    readonly prompt: Prompt,
    readonly stream: TextStream,
    private readonly options: GenerateOptions,
  ) {
    this.sampler = new Sampler(options.sampling, number);
  }

  static async open(number: number, prompt: Prompt, codec: Codec, options: GenerateOptions): Promise<Sequence> {
    return new Sequence(number, prompt, await TextStream.open(codec, prompt.ids, options.stops), options);
  }

  /** The newest token, whose keys and values are still to be computed. */
  get entry(): Entry {
    const past = this.prompt.ids.length + this.ids.length - 1;
    return { slot: this.number, past, ids: Int32Array.of(this.ids.at(-1) as number) };
  }

  /** Takes the next token. */
  async take(id: number, { onText, onEnd }: GenerateHooks): Promise<void> {
    this.ids.push(id);
    const { stopTokens, maxTokens } = this.options;
    let [finish, stop]: [Finish | undefined, string | undefined] = [undefined, undefined];
    if (stopTokens.has(id)) finish = 'eos';
    else {
      const added = await this.stream.push(id);
      if (added.text !== '') onText?.(this.number, added.text);
      stop = added.stop;
      if (stop !== undefined) finish = 'stop';
      else if (this.ids.length === maxTokens) finish = 'length';
    }
    if (!finish) return;
    const rest = finish === 'stop' ? '' : this.stream.end();
    if (rest !== '') onText?.(this.number, rest);
    const { prompt, ids, stream } = this;
    this.generated = {
      prompt: prompt.text,
      promptTokens: prompt.ids.length,
      text: stream.text,
      ids,
      finish,
      ...(stop !== undefined && { stop }),
    };
    onEnd?.(this.number, this.generated);
  }
}

/**
 * Continues every prompt, all of them at once: first the prompts, at most BATCH_TOKENS tokens a step, then a token of each a step.
 * What a sequence becomes does not depend on the others. `cache` has a slot for each. Throws what runStep, the tokenizer and the hooks
 * throw.
 */
export async function generate(
  rt: NativeRuntime,
  model: ResidentModel,
  cache: Cache,
  codec: Codec,
  prompts: readonly Prompt[],
  options: GenerateOptions,
  hooks: GenerateHooks = {},
): Promise<{ readonly generated: readonly Generated[]; readonly timings: Timings }> {
  const started = performance.now();
  const sequences = await Promise.all(prompts.map((prompt, number) => Sequence.open(number, prompt, codec, options)));
  for (const entries of prefillSteps(prompts, cache.pieces)) {
    tell('reading prompts, tokens', entries[0]?.past, prompts[entries[0]?.slot ?? 0]?.ids.length);
    const ends = entries.map(({ slot, past, ids }) => past + ids.length === prompts[slot]!.ids.length);
    const rows = await logitsOf(rt, model, cache, entries, hooks);
    await Promise.all(
      entries.map(({ slot }, i) => ends[i] && take(sequences[slot] as Sequence, rows[i] as Float32Array, hooks)),
    );
  }
  const first = performance.now();
  const decoded = await writeTexts(new TokenSteps(rt, model, cache), sequences, model.graph.vocab, options, hooks);
  return {
    generated: sequences.map(({ generated }) => generated as Generated),
    timings: {
      prefill: (first - started) / 1000,
      decode: (performance.now() - first) / 1000,
      promptTokens: prompts.reduce((sum, { ids }) => sum + ids.length, 0),
      decoded,
    },
  };
}

/** A token of each open sequence a step, until all have ended. Gives how many tokens that were. */
async function writeTexts(
  steps: TokenSteps,
  sequences: readonly Sequence[],
  vocab: number,
  { maxTokens }: GenerateOptions,
  hooks: GenerateHooks,
): Promise<number> {
  let decoded = 0;
  try {
    for (;;) {
      const open = sequences.filter(({ generated }) => !generated);
      if (open.length === 0) return decoded;
      tell(`writing ${open.length > 1 ? `${open.length} texts, ` : ''}token`, open[0]?.ids.length, maxTokens);
      hooks.onStep?.();
      const values = await steps.logits(open.map(({ entry }) => entry));
      decoded += open.length;
      await Promise.all(open.map((sequence, i) => take(sequence, values.subarray(i * vocab, (i + 1) * vocab), hooks)));
    }
  } finally {
    steps.dispose();
  }
}

function take(sequence: Sequence, logits: Float32Array, hooks: GenerateHooks): Promise<void> {
  return sequence.take(sequence.sampler.next(logits), hooks);
}

/** Of each entry the logits after its last token. */
async function logitsOf(
  rt: NativeRuntime,
  model: ResidentModel,
  cache: Cache,
  entries: readonly Entry[],
  { onStep }: GenerateHooks,
): Promise<Float32Array[]> {
  onStep?.();
  const step = makeStep(rt, entries);
  try {
    const logits = await runStep(rt, model, cache, step);
    const values = await readTyped(rt, logits);
    logits.dispose();
    const { vocab } = model.graph;
    return entries.map((_, i) => values.subarray(i * vocab, (i + 1) * vocab));
  } finally {
    disposeStep(step);
  }
}

/** The prompts in steps of at most BATCH_TOKENS tokens; `pieces`: a long one in several, else in one of its own. */
export function* prefillSteps(prompts: readonly Prompt[], pieces: boolean): Generator<Entry[]> {
  let open: Entry[] = [];
  let tokens = 0;
  for (const [slot, { ids }] of prompts.entries()) {
    const piece = pieces ? BATCH_TOKENS : ids.length;
    for (let past = 0; past < ids.length; past += piece) {
      const part = ids.subarray(past, past + piece);
      if (open.length > 0 && tokens + part.length > BATCH_TOKENS) {
        yield open;
        open = [];
        tokens = 0;
      }
      open.push({ slot, past, ids: part });
      tokens += part.length;
    }
  }
  if (open.length > 0) yield open;
}
