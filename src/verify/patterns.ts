/** Whether `name` begins with what a pattern of quantization_config matches, as Python's re.match; false for one that is none. */
export function matchesPattern(pattern: string, name: string): boolean {
  try {
    return new RegExp(`^(?:${pattern})`).test(name);
  } catch {
    return false;
  }
}

/** Patterns in their order. Most name one module, `^NAME$`: these are looked up, for a model has thousands. */
export class Patterns {
  private readonly literal = new Map<string, number[]>();
  private readonly others: (readonly [index: number, pattern: string])[] = [];

  constructor(patterns: readonly string[]) {
    for (const [i, pattern] of patterns.entries()) {
      const name = /^\^((?:[\w-]|\\\.)+)\$$/.exec(pattern)?.[1]?.replaceAll('\\.', '.');
      if (name === undefined) this.others.push([i, pattern]);
      else this.literal.set(name, [...(this.literal.get(name) ?? []), i]);
    }
  }

  /** Indices of the patterns that match, ascending. */
  matching(name: string): number[] {
    const others = this.others.filter(([, pattern]) => matchesPattern(pattern, name)).map(([i]) => i);
    return [...(this.literal.get(name) ?? []), ...others].sort((a, b) => a - b);
  }
}

/** A list of modules as compressed-tensors has them: exact names, re:REGEX, or names of classes. */
export class NameList {
  private readonly exact: ReadonlySet<string>;
  private readonly written: readonly string[];
  private readonly patterns: Patterns;

  constructor(readonly items: readonly string[]) {
    this.written = items.filter((item) => item.startsWith('re:'));
    this.exact = new Set(items.filter((item) => !item.startsWith('re:')));
    this.patterns = new Patterns(this.written.map((item) => item.slice('re:'.length)));
  }

  has(item: string): boolean {
    return this.exact.has(item);
  }

  /** The re: items that match. */
  matching(name: string): string[] {
    return this.patterns.matching(name).map((i) => this.written[i] as string);
  }

  names(name: string): boolean {
    return this.has(name) || this.patterns.matching(name).length > 0;
  }
}
