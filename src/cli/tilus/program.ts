import { existsSync, readFileSync } from 'node:fs';
import type { Command } from 'commander';
import { LpqError, oneOf } from '../../core/error.js';
import { type CheckOptions, check, type Settings } from '../../tilus/check/check.js';
import type { Program } from '../../tilus/check/program.js';
import type { Source } from '../../tilus/language/ast.js';
import { parse } from '../../tilus/language/parse.js';
import { PROGRAMS, programText } from '../../tilus/programs.js';
import { collect } from '../options/parse.js';

export interface ProgramFlags {
  readonly set?: readonly string[];
  readonly arch?: string;
}

export type Arch = 80 | 86 | 89 | 90;
const ARCHITECTURES = ['80', '86', '89', '90'] as const;

/** The options of commands that take a program. */
export function programOptions(command: Command): Command {
  return command
    .argument('<program>', `${PROGRAMS.join(', ')}, or a file`)
    .option('--set <name=value>', 'value of a constant of the program, such as T=u3; may be repeated', collect)
    .option(
      '--arch <number>',
      `device whose shared memory the program must fit: ${ARCHITECTURES.join(', ')} (default: 80, or the device of --device)`,
    );
}

/** Values of --set. Throws LPQ_USAGE. */
export function settingsOf(set: readonly string[]): Settings {
  const settings: Record<string, string | number> = {};
  for (const each of set) {
    const at = each.indexOf('=');
    if (at < 1) throw new LpqError('LPQ_USAGE', '--set takes NAME=VALUE', { got: each, expected: 'such as T=u3' });
    settings[each.slice(0, at).trim()] = settingOf(each.slice(at + 1));
  }
  return settings;
}

/** A value of a constant: a number, or an expression such as u3. */
export const settingOf = (text: string): number | string => (/^\d+$/.test(text.trim()) ? Number(text) : text.trim());

/** The most that lpq knows of what a device of this compute capability (10 * major + minor) has. */
export const knownArch = (arch: number): Arch => ([90, 89, 86] as const).find((each) => arch >= each) ?? 80;

/** The program that the arguments name, as text and checked. Throws LPQ_TILUS, LPQ_USAGE, LPQ_FILE. */
export function openProgram(
  name: string,
  { set = [], arch }: ProgramFlags,
  device: Arch = 80,
): { source: Source; program: Program; arch: Arch } {
  const source = parse(textOf(name));
  const target = arch === undefined ? device : (Number(oneOf('--arch', ARCHITECTURES, arch)) as Arch);
  const settings = settingsOf(set);
  const options: CheckOptions = { settings, arch: target };
  return { source, program: check(source, options), arch: target };
}

/** The text of a program. Throws LPQ_FILE, LPQ_TILUS. */
export function textOf(name: string): string {
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
