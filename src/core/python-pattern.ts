/** Escapes of Python's `re` that are a letter of their own in JavaScript, or nothing; Python refuses all other letters. */
const ESCAPES: Readonly<Record<string, string>> = {
  A: '(?<![\\s\\S])',
  Z: '(?![\\s\\S])',
  z: '(?![\\s\\S])',
  a: '\\x07',
  ...Object.fromEntries([...'bBdDfnrsStvwWxu0123456789'].map((letter) => [letter, `\\${letter}`])),
};
/** What JavaScript takes a backslash before. */
const SYNTAX = '^$\\.*+?()[]{}|/';

/**
 * What a pattern of Python's `re` is in JavaScript, for the flag `u`: engines read the rules of checkpoints with `re.match`. Throws
 * SyntaxError where it is none; what the two languages write alike is left to JavaScript to refuse.
 */
export function fromPython(pattern: string): { readonly source: string; readonly flags: string } {
  const [groups = ''] = /^(?:\(\?[aimsu]+\))+/.exec(pattern) ?? [];
  const rest = pattern.slice(groups.length);
  let source = '';
  for (let at = 0; at < rest.length; ) {
    const [text, length] = rest[at] === '[' ? characterClass(rest, at) : piece(rest, at);
    source += text;
    at += length;
  }
  // Python's other flags say what holds here anyway.
  const flags = [...new Set(groups)].filter((letter) => 'ims'.includes(letter));
  return { source, flags: `u${flags.join('')}` };
}

/** What stands at a place outside of classes, and how long it is. */
function piece(pattern: string, at: number): [text: string, length: number] {
  const here = pattern.slice(at, at + 200);
  if (here[0] === '\\') return escaped(here, false);
  const comment = /^\(\?#[^)]*\)/.exec(pattern.slice(at));
  if (comment) return ['', comment[0].length];
  const named = /^\(\?P<(\w+)>/.exec(here);
  if (named) return [`(?<${named[1]}>`, named[0].length];
  const back = /^\(\?P=(\w+)\)/.exec(here);
  if (back) return [`\\k<${back[1]}>`, back[0].length];
  const upTo = /^\{,(\d+)\}/.exec(here);
  if (upTo) return [`{0,${upTo[1]}}`, upTo[0].length];
  const count = /^\{\d+(,\d*)?\}/.exec(here);
  if (count) return [count[0], count[0].length];
  // A brace that begins no count stands for itself in Python.
  if (here[0] === '{' || here[0] === '}' || here[0] === ']') return [`\\${here[0]}`, 1];
  return [here[0] as string, 1];
}

function characterClass(pattern: string, start: number): [text: string, length: number] {
  const negated = pattern[start + 1] === '^';
  let text = negated ? '[^' : '[';
  const first = start + text.length;
  for (let at = first; at < pattern.length; ) {
    const letter = pattern[at] as string;
    // The first bracket does not close the class.
    if (letter === ']' && at > first) return [`${text}]`, at + 1 - start];
    const [part, length] =
      letter === '\\'
        ? escaped(pattern.slice(at, at + 200), true)
        : [SYNTAX.includes(letter) ? `\\${letter}` : letter, 1];
    text += part;
    at += length;
  }
  throw new SyntaxError('unterminated character set');
}

function escaped(text: string, inClass: boolean): [text: string, length: number] {
  const letter = text[1];
  if (letter === undefined) throw new SyntaxError('bad escape at the end');
  const long = /^\\U([0-9a-fA-F]{8})/.exec(text);
  if (long) return [`\\u{${long[1]}}`, 10];
  if (/[A-Za-z0-9]/.test(letter)) {
    const known = ESCAPES[letter];
    if (known === undefined || (inClass && 'AZzB'.includes(letter))) throw new SyntaxError(`bad escape \\${letter}`);
    return [known, 2];
  }
  const kept = SYNTAX.includes(letter) || (inClass && letter === '-');
  const whole = String.fromCodePoint(text.codePointAt(1) as number);
  return [kept ? `\\${letter}` : whole, 1 + whole.length];
}
