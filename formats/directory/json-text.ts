import { type Node, parseTree } from 'jsonc-parser';
import { LpqError } from '../../src/core/error.js';

/**
 * The text of a JSON object with one member of its top level set, or taken out where `value` is undefined; all other bytes
 * stay, for a number that is parsed and printed may be another to a strict reader (30.0, 1e-05, integers beyond 2^53). A new
 * member comes last. Where the key stands several times, parsers take the last: that one is set, the others go. `file` is
 * for messages. Throws LPQ_CONFIG for text that is no JSON object.
 */
export function withMember(text: string, key: string, value: unknown, file: string): string {
  return setMember(text, objectOf(text, file), key, value);
}

/** The same with one member of an object that is a member of the top level taken out; the same text where there is none. Throws as withMember. */
export function withoutInner(text: string, outer: string, key: string, file: string): string {
  const members = objectOf(text, file).children ?? [];
  const inner = members.findLast((member) => member.children?.[0]?.value === outer)?.children?.[1];
  return inner?.type === 'object' ? setMember(text, inner, key, undefined) : text;
}

function objectOf(text: string, file: string): Node {
  let root: Node | undefined;
  try {
    root = parseTree(text, [], { disallowComments: true });
  } catch (cause) {
    if (!(cause instanceof RangeError)) throw cause;
    throw new LpqError('LPQ_CONFIG', `${file} nests too deeply`, { cause });
  }
  if (root?.type !== 'object') throw new LpqError('LPQ_CONFIG', `${file} does not hold an object`);
  return root;
}

function setMember(text: string, root: Node, key: string, value: unknown): string {
  const members = root.children ?? [];
  const own = members.filter((member) => member.children?.[0]?.value === key);
  const kept = value === undefined ? undefined : own.at(-1);
  let changed = text;
  // From the back, so that offsets before a change stay true.
  if (value !== undefined && !kept) changed = inserted(changed, root, key, value);
  for (const member of [...own].reverse())
    changed =
      member === kept
        ? splice(changed, member.children?.[1] as Node, printed(value, layoutOf(text, root)))
        : removed(changed, members, member);
  return changed;
}

interface Layout {
  /** What parts two members: an end of line and the indentation, or nothing where the text has one line. */
  readonly lead: string;
  readonly unit: string;
}

function layoutOf(text: string, root: Node): Layout {
  const first = root.children?.[0];
  if (!first) return { lead: '\n  ', unit: '  ' };
  const space = text.slice(root.offset + 1, first.offset);
  const line = /\r?\n[^\n]*$/.exec(space)?.[0];
  return { lead: line ?? '', unit: line?.replace(/^\r?\n/, '') ?? '' };
}

function printed(value: unknown, { lead, unit }: Layout): string {
  return lead === '' ? JSON.stringify(value) : JSON.stringify(value, null, unit || '  ').replaceAll('\n', lead);
}

function inserted(text: string, root: Node, key: string, value: unknown): string {
  const layout = layoutOf(text, root);
  const member = `${JSON.stringify(key)}: ${printed(value, layout)}`;
  const last = root.children?.at(-1);
  if (!last) return `${text.slice(0, root.offset)}{\n  ${member}\n}${text.slice(root.offset + root.length)}`;
  const end = last.offset + last.length;
  return `${text.slice(0, end)},${layout.lead || ' '}${member}${text.slice(end)}`;
}

function splice(text: string, { offset, length }: Node, value: string): string {
  return text.slice(0, offset) + value + text.slice(offset + length);
}

/** Members after `member` must not have moved; it goes with one comma and the space around it. */
function removed(text: string, members: readonly Node[], member: Node): string {
  const at = members.indexOf(member);
  const before = members[at - 1];
  const end = member.offset + member.length;
  if (before) return text.slice(0, before.offset + before.length) + text.slice(end);
  // The first of several: up to where the next one begins; where it was the only one, the braces stay.
  const next = /^\s*,\s*/.exec(text.slice(end));
  return text.slice(0, member.offset) + text.slice(end + (next?.[0].length ?? 0));
}
