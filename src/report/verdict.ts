import type { Evaluation, ReportModule } from '../../formats/report/schema.js';

export type Grade = 'close' | 'noticeable' | 'large' | 'unknown';

/** Is it good? In words, with what the words are measured by. */
export interface Verdict {
  readonly grade: Grade;
  /** A sentence without an end: 'close to the source'. */
  readonly says: string;
  /** The figures behind it: 'KL 0.0376 nats per token, perplexity + 2.8 %'. */
  readonly because: string;
}

/**
 * Bounds of what is called close, and noticeable: a convention, set so that GPTQ of 4 bits of the bundled model is close, and its 3 bits
 * noticeable. Error: the mean over modules that goes with these on small models; used where no text was read.
 */
export const BOUNDS = {
  kl: { close: 0.05, noticeable: 0.2 },
  perplexity: { close: 0.05, noticeable: 0.15 },
  error: { close: 0.007, noticeable: 0.03 },
} as const;

const WORDS: Readonly<Record<Grade, string>> = {
  close: 'close to the source',
  noticeable: 'a noticeable loss: some answers will differ',
  large: 'a large loss: texts will differ',
  unknown: 'not measured',
};

const RANK: readonly Grade[] = ['close', 'noticeable', 'large'];

/** The verdict on a run: by the first text that both checkpoints read, else by the errors of its modules. */
export function verdictOf(evaluations: readonly Evaluation[], relativeError: number | null): Verdict {
  const found = evaluations.find(({ source }) => source !== null);
  if (found?.source) {
    const { kl, perplexity } = found.source;
    const more = found.perplexity.ppl / perplexity.ppl - 1;
    const grades = [grade(kl.mean, BOUNDS.kl), grade(more, BOUNDS.perplexity)];
    const worst = grades.reduce((a, b) => (RANK.indexOf(a) > RANK.indexOf(b) ? a : b));
    const change = `perplexity ${more < 0 ? '−' : '+'}${Math.abs(100 * more).toFixed(1)} %`;
    return {
      grade: worst,
      says: WORDS[worst],
      because: `KL ${kl.mean.toPrecision(3)} nats per token, ${change} on ${found.text}`,
    };
  }
  if (relativeError === null) return { grade: 'unknown', says: WORDS.unknown, because: 'no text was read' };
  const by = grade(relativeError, BOUNDS.error);
  return {
    grade: by,
    says: `${WORDS[by]} (from the errors of modules only)`,
    because: `mean relative error ${relativeError.toPrecision(3)}`,
  };
}

function grade(value: number, bounds: { readonly close: number; readonly noticeable: number }): Grade {
  return value <= bounds.close ? 'close' : value <= bounds.noticeable ? 'noticeable' : 'large';
}

/** The modules whose outputs changed most, the worst first; those without an error are left out. */
export function worstModules<T extends Pick<ReportModule, 'name' | 'relativeError'>>(
  modules: readonly T[],
  most = 5,
): (T & { readonly relativeError: number })[] {
  const known = modules.filter((module): module is T & { relativeError: number } => module.relativeError !== null);
  return known.sort((a, b) => b.relativeError - a.relativeError).slice(0, most);
}
