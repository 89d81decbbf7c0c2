import type { Source, Statement } from './ast.js';
import { parse, parseExpression, parseStatement } from './parse.js';

/**
 * Builds a program by calls, for code that generates programs. Each statement is the text of one line; functions nest blocks.
 *
 *     build('copy<1>(f16* from, f16* to)', {}, (b) => b.add('a = ViewGlobal(from, shape=[64])')...)
 */
export class Builder {
  private body: Statement[] = [];

  add(...lines: readonly string[]): this {
    for (const line of lines) this.body.push({ ...parseStatement(`${line}\n`), line: 0 });
    return this;
  }
  for(variable: string, range: readonly (string | number)[], fill: (b: Builder) => void): this {
    const bounds = range.map((each) => parseExpression(String(each)));
    this.body.push({ kind: 'for', line: 0, variable, range: bounds, body: nested(fill) });
    return this;
  }
  while(condition: string, fill: (b: Builder) => void): this {
    this.body.push({ kind: 'while', line: 0, condition: parseExpression(condition), body: nested(fill) });
    return this;
  }
  if(condition: string, then: (b: Builder) => void, otherwise?: (b: Builder) => void): this {
    const branches = { body: nested(then), otherwise: otherwise ? nested(otherwise) : [] };
    this.body.push({ kind: 'if', line: 0, condition: parseExpression(condition), ...branches });
    return this;
  }
  statements(): readonly Statement[] {
    return this.body;
  }
}

function nested(fill: (b: Builder) => void): readonly Statement[] {
  const inner = new Builder();
  fill(inner);
  return inner.statements();
}

/**
 * A program from its head, `name<grid>(parameters)`, its constants and the statements that `fill` adds; lines are numbered as `print` writes them.
 * Throws LPQ_TILUS.
 */
export function build(
  head: string,
  constants: Readonly<Record<string, string | number>>,
  fill: (b: Builder) => void,
): Source {
  const lines = Object.entries(constants).map(([name, value]) => `const ${name} = ${value}\n`);
  const empty = parse(`${lines.join('')}def ${head}:\n    Exit()\n`);
  const builder = new Builder();
  fill(builder);
  let line = empty.constants.length + 1;
  const numbered = (body: readonly Statement[]): Statement[] =>
    body.map((each): Statement => {
      line++;
      if (each.kind === 'for' || each.kind === 'while') return { ...each, line, body: numbered(each.body) };
      if (each.kind !== 'if') return { ...each, line };
      const at = line;
      const body = numbered(each.body);
      if (each.otherwise.length > 0) line++;
      return { ...each, line: at, body, otherwise: numbered(each.otherwise) };
    });
  return { ...empty, body: numbered(builder.statements()) };
}
