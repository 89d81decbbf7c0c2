import { LpqError } from '../src/core/error.js';

/** An option's list with commas, of which each item is there once; `parse` may make several of one. Throws LPQ_USAGE. */
export function listed<T>(
  option: string,
  text: string,
  name: (item: T) => string,
  parse: (item: string) => T | readonly T[],
): T[] {
  const items = text.split(',').map((item) => item.trim());
  if (items.includes(''))
    throw new LpqError('LPQ_USAGE', `${option} names nothing`, {
      got: text === '' ? 'an empty list' : text,
      expected: 'a list with commas',
    });
  const parsed = items.flatMap(parse);
  const names = parsed.map(name);
  const twice = names.find((each, i) => names.indexOf(each) !== i);
  if (twice === undefined) return parsed;
  throw new LpqError('LPQ_USAGE', `${option} names ${twice} twice`, { got: text });
}
