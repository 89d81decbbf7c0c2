import { type Stats, statSync } from 'node:fs';

/** What a path leads to; undefined where it leads nowhere: a name that is too long does, too. */
export function factsOf(place: string): Stats | undefined {
  try {
    return statSync(place);
  } catch {
    return undefined;
  }
}
