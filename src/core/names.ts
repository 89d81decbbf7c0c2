import { distance } from 'fastest-levenshtein';

/** What people write instead of the names of a list, and what to do then: whole sentences. */
export type Meanings = Readonly<Record<string, string>>;

/** The hint about a name that a list does not have: what it means elsewhere, or the name that is spelled alike. */
export function hintFor(given: string, names: readonly string[], meanings: Meanings = {}): string | undefined {
  const wanted = given.trim().toLowerCase();
  if (Object.hasOwn(meanings, wanted)) return meanings[wanted];
  let best: { readonly name: string; readonly edits: number } | undefined;
  for (const name of names) {
    const edits = distance(wanted, name.toLowerCase());
    if (edits <= slips(name) && (!best || edits < best.edits)) best = { name, edits };
  }
  return best && `Did you mean ${best.name}?`;
}

/** Letters that may be wrong, missing or too many: two neighbours that changed places are two. */
function slips({ length }: string): number {
  return length < 3 ? 0 : length < 4 ? 1 : Math.max(2, Math.floor(length / 4));
}
