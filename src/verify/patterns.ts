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
  private readonly literal = new Map<string, number>();
  private readonly others: (readonly [index: number, pattern: string])[] = [];

  constructor(patterns: readonly string[]) {
    for (const [i, pattern] of patterns.entries()) {
      const name = /^\^((?:[\w-]|\\\.)+)\$$/.exec(pattern)?.[1]?.replaceAll('\\.', '.');
      if (name === undefined) this.others.push([i, pattern]);
      else if (!this.literal.has(name)) this.literal.set(name, i);
    }
  }

  /** Index of the first pattern that matches. */
  first(name: string): number | undefined {
    const exact = this.literal.get(name);
    const other = this.others.find(([, pattern]) => matchesPattern(pattern, name))?.[0];
    if (exact === undefined || other === undefined) return exact ?? other;
    return Math.min(exact, other);
  }
}

/** A list of modules as compressed-tensors has them: exact names, re:REGEX, or names of classes. */
export class NameList {
  private readonly exact: ReadonlySet<string>;
  private readonly patterns: readonly string[];

  constructor(readonly items: readonly string[]) {
    this.patterns = items.filter((item) => item.startsWith('re:'));
    this.exact = new Set(items.filter((item) => !item.startsWith('re:')));
  }

  has(item: string): boolean {
    return this.exact.has(item);
  }

  /** The re: items that match. */
  matching(name: string): string[] {
    return this.patterns.filter((item) => matchesPattern(item.slice(3), name));
  }

  names(name: string): boolean {
    return this.has(name) || this.patterns.some((item) => matchesPattern(item.slice(3), name));
  }
}
