import { LpqError } from '../core/error.js';
import { check, type Settings } from './check/check.js';
import type { Program } from './check/program.js';
import { compile, type Kernel } from './compile/compile.js';
import type { Source } from './language/ast.js';

/** A configuration of a program: its kernel, or the sentence why it cannot run. */
export interface Candidate {
  readonly settings: Settings;
  readonly program?: Program;
  readonly kernel?: Kernel;
  readonly refused?: string;
}

/** Every combination of the values given for each constant, the last one changing fastest. */
export function combinations(values: Readonly<Record<string, readonly (number | string)[]>>): Settings[] {
  return Object.entries(values).reduce<Settings[]>(
    (all, [name, each]) => all.flatMap((settings) => each.map((value) => ({ ...settings, [name]: value }))),
    [{}],
  );
}

/** Checks and compiles a program in every configuration; those that cannot run are told with their reason. */
export function enumerate(source: Source, all: readonly Settings[], arch: 80 | 86 | 89 | 90 = 80): Candidate[] {
  return all.map((settings, i) => {
    try {
      const program = check(source, { settings, arch });
      return { settings, program, kernel: compile(program, `${source.name}_${i}`) };
    } catch (error) {
      if (!(error instanceof LpqError)) throw error;
      return { settings, refused: error.message };
    }
  });
}
