import type { Command } from 'commander';
import { LpqError } from '../../core/error.js';
import type { Run } from '../run.js';
import { line } from '../terminal/terminal.js';

/** `lpq init`: five questions, and a recipe made of the answers. */
export function initCommand(program: Command, run: Run): Command {
  return program
    .command('init')
    .description('ask five questions and write a recipe for lpq quantize')
    .option('-o, --output <file>', 'recipe to write', 'recipe.yaml')
    .action(({ output }: { output: string }) => init(output, process.stdin, process.stderr, run));
}

/** Asks on `input` and `prompts`, and writes `file`. Throws LPQ_OUTPUT_EXISTS, and LPQ_USAGE where nobody can answer. */
export async function init(
  file: string,
  input: NodeJS.ReadableStream & { readonly isTTY?: boolean },
  prompts: NodeJS.WritableStream,
  run: Run,
): Promise<void> {
  const { existsSync } = await import('node:fs');
  if (existsSync(file))
    throw new LpqError('LPQ_OUTPUT_EXISTS', `the output ${file} already exists`, {
      hint: 'Choose another path with -o, or remove it first; lpq never overwrites.',
    });
  if (!input.isTTY)
    throw new LpqError('LPQ_USAGE', 'lpq init asks questions, and stdin is not a terminal', {
      hint: 'Run it in a terminal, or let lpq quantize MODEL -o OUT --bits 4 --print-recipe print a recipe.',
    });
  const { ask } = await import('./questions.js');
  const { commandFor, recipeText } = await import('./write.js');
  const { replaceFile } = await import('../../report/write.js');
  const answers = await ask(input, prompts);
  await replaceFile(file, recipeText(answers, file));
  const command = commandFor(answers, file);
  run.report.result({ command: 'init', output: file, answers, next: command }, line`wrote ${file}\nnext  ${command}\n`);
}
