import { bounded } from './bounded.js';
import { LpqError } from './error.js';
import { fromPython } from './python-pattern.js';

/** Seconds of processor time for the rules of one list: so many, more for each name, and for each name and rule. */
export interface PatternBudget {
  readonly base: number;
  readonly name: number;
  readonly rule: number;
}

/** A rule takes a microsecond or less, unless it was made to take for ever. */
const GENEROUS: PatternBudget = { base: 4, name: 1e-3, rule: 1e-5 };
/** `^path$` with escaped points, as lpq writes rules: found without being run, since there may be one for each of thousands of modules. */
const EXACT = /^\^((?:[\w/-]|\\[.\-_])*)\$$/;

/**
 * Regular expressions that a file brings along, in Python's syntax: they match the beginning of a name, as re.match does. Together they
 * have a budget of time, since an expression may take longer than anyone lives; a signal is answered when it is over.
 */
export class Patterns {
  /** Place of the first rule of this exact text. */
  private readonly exact = new Map<string, number>();
  private readonly rules: { readonly at: number; readonly expression: RegExp }[] = [];
  private used = 0;
  private allowed: number;
  private failure: LpqError | undefined;

  /** `place` is for messages, as in config.json: 'ignore'. */
  constructor(
    private readonly place: string,
    private readonly sources: readonly string[],
    private readonly budget: PatternBudget = GENEROUS,
  ) {
    this.allowed = budget.base;
    for (const [at, source] of sources.entries()) {
      const literal = EXACT.exec(source)?.[1]?.replace(/\\/g, '');
      if (literal === undefined) this.add(at, source);
      else if (!this.exact.has(literal)) this.exact.set(literal, at);
    }
  }

  /**
   * Which of them is the first to match, or -1. Throws LPQ_CONFIG for what is no expression, LPQ_BUDGET where one does not come to an
   * end; from then on always the same error.
   */
  first(name: string): number {
    return this.run(name, true)[0] ?? -1;
  }

  /** Which of them match, ascending; of rules of one exact text the first. Throws as first(). */
  all(name: string): number[] {
    return this.run(name, false);
  }

  private run(name: string, first: boolean): number[] {
    if (this.failure) throw this.failure;
    const exact = this.exact.get(name);
    const found = exact === undefined ? [] : [exact];
    if (this.rules.length === 0) return found;
    this.allowed += this.budget.name + this.budget.rule * this.rules.length;
    let tried = 0;
    const before = process.cpuUsage();
    try {
      bounded(
        this.allowed - this.used,
        () => {
          for (const { at, expression } of this.rules) {
            tried = at;
            if (first && exact !== undefined && at > exact) break;
            if (!expression.test(name)) continue;
            found.push(at);
            if (first) break;
          }
        },
        (cause) => this.endless(name, tried, cause),
      );
    } catch (cause) {
      // The engine itself may give up, where its stack is full.
      throw cause instanceof LpqError ? cause : this.endless(name, tried, cause);
    }
    const { user, system } = process.cpuUsage(before);
    this.used += (user + system) / 1e6;
    if (this.used > this.allowed) throw this.endless(name, tried);
    return found.sort((x, y) => x - y);
  }

  private add(at: number, pattern: string): void {
    try {
      const { source, flags } = fromPython(pattern);
      this.rules.push({ at, expression: new RegExp(`^(?:${source})`, flags) });
    } catch (cause) {
      this.failure ??= new LpqError('LPQ_CONFIG', `${this.place} holds a regular expression that lpq cannot read`, {
        got: pattern,
        hint: "Write it in the syntax of Python's re, with flags at its beginning only.",
        cause,
      });
    }
  }

  private endless(name: string, tried: number, cause?: unknown): LpqError {
    this.failure = new LpqError(
      'LPQ_BUDGET',
      `${this.place} holds a regular expression that takes too long on '${name}'`,
      {
        got: this.sources[tried],
        hint: 'Correct the rule, or use the published file; this one may be an attempt to hang programs.',
        cause,
      },
    );
    return this.failure;
  }
}

const kept = new WeakMap<object, Patterns>();

/** The expressions of a list or table of a file, made once; `sources` are read from it. */
export function patternsOf(owner: object, place: string, sources: () => readonly string[]): Patterns {
  const patterns = kept.get(owner) ?? new Patterns(place, sources());
  kept.set(owner, patterns);
  return patterns;
}
