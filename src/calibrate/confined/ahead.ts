import { tell } from '../../core/activity.js';

/** Requests that wait while one is answered, so that the confined process need not wait for the next. */
const AHEAD = 16;

/** What `work` gives for each item, in order; a few are under way at once. `what` is told with how many are done. Throws the first error. */
export async function inOrder<T, R>(
  items: readonly T[],
  work: (item: T, index: number) => Promise<R> | R,
  what?: string,
): Promise<R[]> {
  const results: R[] = [];
  let done = 0;
  const one = async (item: T, index: number): Promise<R> => {
    const result = await work(item, index);
    done++;
    if (what !== undefined) tell(what, done, items.length);
    return result;
  };
  if (what !== undefined) tell(what, 0, items.length);
  for (let at = 0; at < items.length; at += AHEAD)
    results.push(...(await Promise.all(items.slice(at, at + AHEAD).map((item, i) => one(item, at + i)))));
  return results;
}
