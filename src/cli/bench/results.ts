import { writeFile } from 'node:fs/promises';
import type { Command } from 'commander';
import { refuseExisting } from '../../../formats/directory/place.js';
import { writeError } from '../../../formats/directory/write-error.js';
import { LpqError } from '../../core/error.js';
import { integer } from '../options/parse.js';
import { type ComputeOptions, computeOptions } from '../run.js';

export interface ResultFlags extends ComputeOptions {
  readonly passes: number;
  readonly results?: string;
  readonly markdown?: string;
}

/** Options of commands that time calls and may write what they found. */
export function resultOptions(command: Command): Command {
  return computeOptions(
    command
      .option('--passes <n>', 'number of timed replays; the median counts', integer('--passes', 1, 10000), 9)
      .option('--results <file>', 'write everything to this file as JSON')
      .option('--markdown <file>', 'write tables to this file'),
  );
}

/** What is to be written can be, and is not one file. Throws LPQ_USAGE, LPQ_OUTPUT_EXISTS, LPQ_OUTPUT_WRITE. */
export function refuseFiles(...files: readonly (string | undefined)[]): void {
  const given = files.filter((file) => file !== undefined);
  const twice = given.find((file, i) => given.indexOf(file) !== i);
  if (twice !== undefined)
    throw new LpqError('LPQ_USAGE', `two results would be written to ${twice}`, {
      got: twice,
      expected: 'a file each',
    });
  given.forEach(refuseExisting);
}

/** Writes what was asked for: `bench` as JSON and as Markdown, and `more`. Throws LPQ_OUTPUT_WRITE, LPQ_DISK_FULL. */
export async function writeFiles(
  bench: object,
  { results, markdown }: ResultFlags,
  tables: () => string,
  ...more: readonly (readonly [file: string | undefined, text: () => string])[]
): Promise<void> {
  const json = () => `${JSON.stringify(bench, null, 1)}\n`;
  for (const [file, text] of [[results, json] as const, [markdown, tables] as const, ...more]) {
    if (file === undefined) continue;
    await writeFile(file, text(), { flag: 'wx' }).catch((cause) => {
      throw writeError(file, cause);
    });
  }
}
