/**
 * What a terminal would obey or show other than it stands: C0 and C1 controls (ESC begins sequences that move the cursor, set the
 * title, write the clipboard), DEL, separators that break lines, controls of writing direction, the byte order mark, and lone
 * surrogates. Names, paths and sentences of files and servers may hold any of it.
 */
const UNSAFE = /[\p{Cc}\p{Cs}\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ufeff\ufff9-\ufffb]|[\u{e0000}-\u{e007f}]/gu;

const SHORT: Readonly<Record<string, string>> = { '\n': '\\n', '\r': '\\r', '\t': '\\t' };

/** `text` with every such character spelled out (\x1b, \u{202e}); line feeds and tabs, which lay text out, stay. */
export function visible(text: string): string {
  return text.replace(UNSAFE, (char) => (char === '\n' || char === '\t' ? char : spelled(char)));
}

/** The same on one line: for a name, a path, a cell of a table, a sentence. */
export function oneLine(text: string): string {
  return text.replace(UNSAFE, spelled);
}

/** JSON on one line that a terminal may show: what JSON leaves as it is (DEL, C1, directions) is escaped its way. */
export function visibleJson(value: unknown): string {
  return JSON.stringify(value).replace(UNSAFE, (char) =>
    Array.from({ length: char.length }, (_, i) => `\\u${char.charCodeAt(i).toString(16).padStart(4, '0')}`).join(''),
  );
}

function spelled(char: string): string {
  const code = char.codePointAt(0) as number;
  const hex = code.toString(16);
  return SHORT[char] ?? (code < 0x100 ? `\\x${hex.padStart(2, '0')}` : `\\u{${hex}}`);
}
