import { LpqError } from '../../core/error.js';

export interface Token {
  readonly kind: 'name' | 'number' | 'mark' | 'newline' | 'indent' | 'dedent' | 'end';
  readonly text: string;
  readonly line: number;
}

const MARKS = ['==', '!=', '<=', '>=', ...'()[]<>=+-*/%,.:'];

/** A refusal of text: names the line. */
export function syntaxError(line: number, sentence: string, got: string, expected?: string): LpqError {
  return new LpqError('LPQ_TILUS', `line ${line}: ${sentence}`, {
    got,
    ...(expected !== undefined && { expected }),
    hint: 'docs/tilus.md has the grammar and the instructions.',
  });
}

/** Splits text into tokens; lines go on inside brackets, blocks are indented. Throws LPQ_TILUS. */
export function tokens(text: string): Token[] {
  const out: Token[] = [];
  const depths = [0];
  let open = 0;
  for (const [index, whole] of text.split('\n').entries()) {
    const line = index + 1;
    const code = whole.replace(/#.*$/, '').trimEnd();
    if (code.trim() === '') continue;
    if (open === 0) indent(code, line, depths, out);
    let rest = code.trimStart();
    while (rest !== '') {
      const token = first(rest, line);
      if (token.text === '(' || token.text === '[') open++;
      if (token.text === ')' || token.text === ']') open--;
      if (open < 0) throw syntaxError(line, 'a closing bracket has no opening bracket', token.text);
      out.push(token);
      rest = rest.slice(token.text.length).trimStart();
    }
    if (open === 0) out.push({ kind: 'newline', text: '', line });
  }
  const line = text.split('\n').length;
  if (open > 0) throw syntaxError(line, 'the text ends inside brackets', 'the end', ') or ]');
  for (; depths.length > 1; depths.pop()) out.push({ kind: 'dedent', text: '', line });
  out.push({ kind: 'end', text: '', line });
  return out;
}

function indent(code: string, line: number, depths: number[], out: Token[]): void {
  const depth = code.length - code.trimStart().length;
  if (depth > depths.at(-1)!) {
    depths.push(depth);
    out.push({ kind: 'indent', text: '', line });
  }
  for (; depth < depths.at(-1)!; depths.pop()) out.push({ kind: 'dedent', text: '', line });
  if (depth !== depths.at(-1)) throw syntaxError(line, 'the indentation matches no block', `${depth} spaces`);
}

function first(rest: string, line: number): Token {
  const name = /^[A-Za-z_]\w*/.exec(rest);
  if (name) return { kind: 'name', text: name[0], line };
  const number = /^(0x[0-9a-fA-F]+|\d+(\.\d+)?(e[-+]?\d+)?)/.exec(rest);
  if (number) return { kind: 'number', text: number[0], line };
  const mark = MARKS.find((each) => rest.startsWith(each));
  if (mark === undefined) throw syntaxError(line, 'a character has no meaning here', rest.slice(0, 1));
  return { kind: 'mark', text: mark, line };
}
