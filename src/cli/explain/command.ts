import type { Command } from 'commander';
import { CODES, type ErrorCode } from '../../core/codes.js';
import { LpqError } from '../../core/error.js';
import { hintFor } from '../../core/names.js';
import { REMEDIES } from '../../core/remedies.js';
import type { Run } from '../run.js';
import { facts, table } from '../terminal/table.js';

const EXITS: Readonly<Record<number, string>> = {
  1: 'verification found a difference',
  2: 'usage',
  3: 'environment',
  4: 'bad input',
  130: 'interrupted',
  141: 'nobody read to the end',
};

/** `lpq explain CODE`: what an error means and what to do about it. */
export function explainCommand(program: Command, run: Run): Command {
  return program
    .command('explain')
    .description('say what an error code means and what to do about it')
    .argument('[code]', 'such as LPQ_GROUP_SIZE, or GROUP_SIZE (default: list all)')
    .action((code: string | undefined) => explain(code, run));
}

function explain(given: string | undefined, run: Run): void {
  if (given === undefined) {
    const rows = Object.entries(CODES).map(([code, { exit, meaning }]) => ({ code, exit, meaning }));
    const lines = table(
      ['code', 'exit', 'meaning'],
      rows.map((row) => [row.code, String(row.exit), row.meaning]),
    );
    run.report.result({ command: 'explain', codes: rows }, lines);
    return;
  }
  const code = codeOf(given);
  const { exit, meaning } = CODES[code];
  const remedy = REMEDIES[code];
  run.report.result(
    { command: 'explain', code, exit, meaning, remedy },
    `${code}\n${facts([
      ['meaning', meaning],
      ['what to do', remedy],
      ['exit code', `${exit} (${EXITS[exit]})`],
    ])}`,
  );
}

/** Throws LPQ_USAGE with the codes that are spelled alike. */
function codeOf(given: string): ErrorCode {
  const upper = given.trim().toUpperCase().replace(/[- ]/g, '_');
  const code = upper.startsWith('LPQ_') ? upper : `LPQ_${upper}`;
  if (Object.hasOwn(CODES, code)) return code as ErrorCode;
  const words = code
    .split('_')
    .slice(1)
    .filter((word) => word.length > 2);
  const alike = Object.keys(CODES).filter((each) => words.some((word) => each.includes(word)));
  throw new LpqError('LPQ_USAGE', `there is no error code ${given}`, {
    got: given,
    ...(alike.length > 0 && { expected: alike.join(', ') }),
    hint: hintFor(code, Object.keys(CODES)) ?? 'lpq explain lists all codes.',
  });
}
