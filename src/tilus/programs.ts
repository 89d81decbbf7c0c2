import { readFileSync } from 'node:fs';
import path from 'node:path';
import { fileURLToPath } from 'node:url';
import { LpqError } from '../core/error.js';
import type { Source } from './language/ast.js';
import { parse } from './language/parse.js';

/** Programs that lpq has, each a file of share/tilus. */
export const PROGRAMS = [
  'matmul',
  'transform',
  'dequantize',
  'sum',
  'fragments',
  'hopper',
  'transform_hopper',
] as const;

const folder = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..', '..', '..', 'share', 'tilus');

/** The text of one of PROGRAMS. Throws LPQ_TILUS for another name. */
export function programText(name: string): string {
  if (!(PROGRAMS as readonly string[]).includes(name))
    throw new LpqError('LPQ_TILUS', `lpq has no program ${name}`, {
      got: name,
      expected: PROGRAMS.join(', '),
      hint: 'For your own program, give the path of its file.',
    });
  return readFileSync(path.join(folder, `${name}.tilus`), 'utf8');
}

/** One of PROGRAMS, its constants not yet set. */
export const program = (name: string): Source => parse(programText(name));
