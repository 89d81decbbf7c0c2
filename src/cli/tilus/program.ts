import { existsSync, readFileSync } from 'node:fs';
import type { Command } from 'commander';
import { LpqError, oneOf } from '../../core/error.js';
import { type CheckOptions, check } from '../../tilus/check/check.js';
import type { Program } from '../../tilus/check/program.js';
import type { Source } from '../../tilus/language/ast.js';
import { parse } from '../../tilus/language/parse.js';
import { PROGRAMS, programText } from '../../tilus/programs.js';
import { collect } from '../options/parse.js';

export interface ProgramFlags {
  readonly set?: readonly string[];
  readonly arch: string;
}

const ARCHITECTURES = ['80', '86', '89', '90'] as const;

/** The options of commands that take a program. */
export function programOptions(command: Command): Command {
  return command
    .argument('<program>', `${PROGRAMS.join(', ')}, or a file`)
    .option('--set <name=value>', 'value of a constant of the program, such as T=u3; may be repeated', collect)
    .option('--arch <number>', `device whose shared memory the program must fit: ${ARCHITECTURES.join(', ')}`, '80');
}

/** The program that the arguments name, as text and checked. Throws LPQ_TILUS, LPQ_USAGE, LPQ_FILE. */
export function openProgram(
  name: string,
  { set = [], arch }: ProgramFlags,
): { source: Source; program: Program; arch: 80 | 86 | 89 | 90 } {
  const source = parse(textOf(name));
  const target = Number(oneOf('--arch', ARCHITECTURES, arch)) as 80 | 86 | 89 | 90;
  const settings: Record<string, string | number> = {};
  for (const each of set) {
    const at = each.indexOf('=');
    if (at < 1) throw new LpqError('LPQ_USAGE', '--set takes NAME=VALUE', { got: each, expected: 'such as T=u3' });
    const value = each.slice(at + 1);
    settings[each.slice(0, at).trim()] = /^\d+$/.test(value.trim()) ? Number(value) : value;
  }
  const options: CheckOptions = { settings, arch: target };
  return { source, program: check(source, options), arch: target };
}

function textOf(name: string): string {
  if ((PROGRAMS as readonly string[]).includes(name)) return programText(name);
  if (!existsSync(name)) {
    if (/^\w+$/.test(name)) return programText(name);
    throw new LpqError('LPQ_FILE', `the program ${name} does not exist`, { got: name });
  }
  try {
    return readFileSync(name, 'utf8');
  } catch (cause) {
    throw new LpqError('LPQ_FILE', `the program ${name} could not be read`, { got: name, cause });
  }
}
