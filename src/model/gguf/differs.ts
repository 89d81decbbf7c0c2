/** What differs: in words, with what the model has and what llama.cpp computes. */
export interface Difference {
  readonly what: string;
  readonly got: unknown;
  readonly expected: unknown;
}

export const near = (a: number, b: number): boolean => Math.abs(a - b) <= 1e-6 * Math.abs(b);

/** A difference, unless they are the same. */
export const differs = (
  what: string,
  got: unknown,
  expected: unknown,
  same = got === expected,
): Difference | undefined => (same ? undefined : { what, got, expected });

/** The first that there is. */
export const first = (list: readonly (Difference | undefined)[]): Difference | undefined =>
  list.find((each) => each !== undefined);
