import { parse, stringify } from 'yaml';

/** Keys of the base model's card that hold for its quantized form, too. */
const KEPT = ['license', 'license_name', 'license_link', 'language', 'library_name', 'pipeline_tag'] as const;

/** A card in its two parts: the YAML between the two lines of dashes, and what follows. */
const HEAD = /^---\r?\n([\s\S]*?)\r?\n---[ \t]*(?:\r?\n|$)/;

/** What stays of the head of a base model's card. A card without one, or with one that is no YAML, leaves nothing. */
export function keptHead(card: string): Record<string, unknown> {
  const found = HEAD.exec(card)?.[1];
  if (found === undefined) return {};
  let head: unknown;
  try {
    head = parse(found, { maxAliasCount: 0 });
  } catch {
    return {};
  }
  if (typeof head !== 'object' || head === null) return {};
  return Object.fromEntries(
    KEPT.flatMap((key) => (key in head ? [[key, (head as Record<string, unknown>)[key]]] : [])),
  );
}

/** The head of a card as it is written. */
export function printHead(head: Readonly<Record<string, unknown>>): string {
  return `---\n${stringify(head, { lineWidth: 0 })}---\n`;
}
