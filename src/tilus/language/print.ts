import type { Source, Statement } from './ast.js';
import { printExpr } from './expressions.js';

/** The program as text; `parse` of it gives the same program. */
export function print(source: Source): string {
  const lines = source.constants.map(({ name, value }) => `const ${name} = ${printExpr(value)}`);
  const grid = source.grid.map((each) => printExpr(each, 4)).join(', ');
  const parameters = source.parameters.map(
    ({ name, type, pointer }) => `${printExpr(type)}${pointer ? '*' : ''} ${name}`,
  );
  lines.push(`def ${source.name}<${grid}>(${parameters.join(', ')}):`);
  return `${[...lines, ...source.body.flatMap((each) => printStatement(each, 1))].join('\n')}\n`;
}

/** One line of a statement, without what is nested in it. */
export function headOf(statement: Statement): string {
  switch (statement.kind) {
    case 'assign':
      return `${statement.name} = ${printExpr(statement.value)}`;
    case 'if':
      return `if ${printExpr(statement.condition)}:`;
    case 'while':
      return `while ${printExpr(statement.condition)}:`;
    case 'for':
      return `for ${statement.variable} in range(${statement.range.map((each) => printExpr(each)).join(', ')}):`;
    case 'call': {
      const args = statement.args.map(
        ({ name, value }) => `${name === undefined ? '' : `${name}=`}${printExpr(value)}`,
      );
      const outputs = statement.outputs.length > 0 ? `${statement.outputs.join(', ')} = ` : '';
      return `${outputs}${statement.name}(${args.join(', ')})`;
    }
  }
}

function printStatement(statement: Statement, depth: number): string[] {
  const margin = '    '.repeat(depth);
  const inner = (body: readonly Statement[]): string[] => body.flatMap((each) => printStatement(each, depth + 1));
  const lines = [`${margin}${headOf(statement)}`];
  if (statement.kind === 'if') {
    lines.push(...inner(statement.body));
    if (statement.otherwise.length > 0) lines.push(`${margin}else:`, ...inner(statement.otherwise));
  } else if (statement.kind === 'for' || statement.kind === 'while') lines.push(...inner(statement.body));
  return lines;
}
