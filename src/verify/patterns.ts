import { Patterns } from '../core/patterns.js';

/** A list of modules as compressed-tensors has them: exact names, re:REGEX (as Python's re.match), or names of classes. */
export class NameList {
  private readonly exact: ReadonlySet<string>;
  private readonly written: readonly string[];
  private readonly patterns: Patterns;

  /** `place` is for messages. */
  constructor(
    place: string,
    readonly items: readonly string[],
  ) {
    this.written = items.filter((item) => item.startsWith('re:'));
    this.exact = new Set(items.filter((item) => !item.startsWith('re:')));
    this.patterns = new Patterns(
      place,
      this.written.map((item) => item.slice('re:'.length)),
    );
  }

  has(item: string): boolean {
    return this.exact.has(item);
  }

  /** The re: items that match. Throws LPQ_CONFIG, LPQ_BUDGET (core/patterns). */
  matching(name: string): string[] {
    return this.patterns.all(name).map((i) => this.written[i] as string);
  }

  names(name: string): boolean {
    return this.has(name) || this.patterns.first(name) >= 0;
  }
}
