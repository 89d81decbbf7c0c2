import { existsSync } from 'node:fs';
import { createInterface } from 'node:readline/promises';
import { LpqError } from '../../core/error.js';
import { hintFor } from '../../core/names.js';
import { ENGINES, engineNamed } from '../../engines/index.js';
import { schemeFromOptions } from '../../quantize/scheme.js';

/** What a user answered. */
export interface Answers {
  readonly model: string;
  /** An engine of --for; undefined: none yet. */
  readonly engine: string | undefined;
  /** A number of bits, or a type. */
  readonly weights: { readonly bits: number } | { readonly dtype: string };
  /** A text; undefined: the bundled one. */
  readonly calib: string | undefined;
  readonly effort: Effort;
}

/** How long calibration may take. */
export type Effort = 'quick' | 'normal' | 'thorough';

export const EFFORTS: Readonly<Record<Effort, { readonly samples: number; readonly seqLen: number }>> = {
  quick: { samples: 32, seqLen: 512 },
  normal: { samples: 128, seqLen: 512 },
  thorough: { samples: 256, seqLen: 2048 },
};

interface Question<T> {
  readonly asks: string;
  readonly otherwise: string;
  /** The answer; throws what is wrong with it, which is told before it is asked again. */
  takes(text: string): T;
}

const ENGINE_NAMES = ENGINES.filter(({ forms }) => forms.length > 0).map(({ name }) => name);

const oneOfNames = (names: readonly string[], what: string) => (text: string) => {
  const name = text.toLowerCase();
  if (names.includes(name)) return name;
  throw new LpqError('LPQ_USAGE', `${what} '${text}' is not known`, {
    expected: names.join(', '),
    hint: hintFor(text, names) ?? `One of ${names.join(', ')}.`,
  });
};

const QUESTIONS = {
  model: { asks: 'Which model? A directory, or a name on the Hugging Face Hub', otherwise: 'MODEL', takes: String },
  engine: {
    asks: `Which engine will load it? ${ENGINE_NAMES.join(', ')}, or none`,
    otherwise: 'vllm',
    takes: (text: string) => (text === 'none' ? undefined : engineNamed(text, false).name),
  },
  weights: {
    asks: 'How many bits per weight? 8, 4, 3, 2, or a type such as fp8 or f6e3m2',
    otherwise: '4',
    takes: (text: string) => {
      const given = /^\d+$/.test(text) ? { bits: Number(text) } : { dtype: text };
      schemeFromOptions(given);
      return given;
    },
  },
  calib: {
    asks: 'A text that looks like your data, .txt or .jsonl? Enter takes a bundled one',
    otherwise: '',
    takes: (text: string) => {
      if (text === '') return undefined;
      if (existsSync(text)) return text;
      throw new LpqError('LPQ_FILE', `${text} does not exist`, { hint: 'Give the path of a file.' });
    },
  },
  effort: {
    asks: 'How long may calibration take? quick, normal or thorough',
    otherwise: 'normal',
    takes: oneOfNames(Object.keys(EFFORTS), 'the answer') as (text: string) => Effort,
  },
} as const satisfies Record<string, Question<unknown>>;

/** Asks the five questions, each until its answer will do. Throws LPQ_USAGE where the input ends before the last. */
export async function ask(input: NodeJS.ReadableStream, output: NodeJS.WritableStream): Promise<Answers> {
  const terminal = createInterface({ input, output });
  const lines = terminal[Symbol.asyncIterator]();
  const one = async <T>({ asks, otherwise, takes }: Question<T>): Promise<T> => {
    for (;;) {
      output.write(`${asks}${otherwise === '' ? '' : ` [${otherwise}]`}: `);
      const { value, done } = await lines.next();
      if (done)
        throw new LpqError('LPQ_USAGE', 'the answers ended before the last question', {
          got: `no answer to: ${asks}`,
          hint: 'Answer each question; Enter takes the value in brackets.',
        });
      try {
        return takes(value.trim() || otherwise);
      } catch (error) {
        if (!(error instanceof LpqError)) throw error;
        output.write(`  ${error.message}. ${error.hint ?? ''}\n`);
      }
    }
  };
  try {
    const model = await one(QUESTIONS.model);
    const engine = await one(QUESTIONS.engine);
    const weights = await one(QUESTIONS.weights);
    const calib = await one(QUESTIONS.calib);
    const effort = await one(QUESTIONS.effort);
    return { model, engine, weights, calib, effort };
  } finally {
    terminal.close();
  }
}
