/** Requests that wait while one is answered, so that the confined process need not wait for the next. */
const AHEAD = 16;

/** What `work` gives for each item, in order; a few are under way at once. Throws the first error. */
export async function inOrder<T, R>(
  items: readonly T[],
  work: (item: T, index: number) => Promise<R> | R,
): Promise<R[]> {
  const results: R[] = [];
  for (let at = 0; at < items.length; at += AHEAD)
    results.push(...(await Promise.all(items.slice(at, at + AHEAD).map((item, i) => work(item, at + i)))));
  return results;
}
