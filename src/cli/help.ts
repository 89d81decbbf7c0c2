import type { Command, Option } from 'commander';

/** Headings of `lpq --help`, and the commands below each. */
const GROUPS: readonly (readonly [heading: string, commands: readonly string[]])[] = [
  ['Make:', ['init', 'quantize', 'pack', 'merge', 'push']],
  ['Check:', ['verify', 'eval', 'compare', 'report']],
  ['Run:', ['generate', 'logits']],
  ['Look:', ['inspect', 'doctor', 'explain']],
  ['Other:', ['bench', 'tilus', 'completion']],
];

/** What follows a command's options in its help; '' is that of lpq itself. */
export const EXAMPLES: Readonly<Record<string, readonly (readonly [command: string, does: string])[]>> = {
  '': [
    ['lpq quantize MODEL -o OUT --bits 4 --for vllm', 'a directory that vLLM serves'],
    ['lpq compare MODEL Q4 Q3 --text book.txt', 'quality over size, side by side'],
    ['lpq quantize --help', 'options of a command'],
    ['lpq explain LPQ_GROUP_SIZE', 'what an error means'],
  ],
  quantize: [
    ['lpq quantize MODEL -o OUT --bits 4 --for vllm', 'quantize, pack and verify for an engine'],
    ['lpq quantize MODEL -o Q --bits 4 --dry-run', 'the plan, with disk and memory'],
    ['lpq quantize MODEL -o Q --bits 3 --calib chats.jsonl', 'calibrate on your own data'],
    ['lpq quantize MODEL -o Q --target-bpw 3.6', 'let lpq choose the bits of each module'],
    ['lpq quantize MODEL -o Q --recipe recipe.yaml', 'options and rules from a file (lpq init writes one)'],
    ['lpq quantize MODEL -o Q --bits 4 --resume', 'continue a stopped run'],
  ],
  pack: [
    ['lpq pack Q --for vllm -o OUT', 'in the format that an engine reads'],
    ['lpq pack Q --target awq -o OUT', 'in a format by its name'],
    ['lpq pack Q --target all -o OUT --dry-run', 'which targets take which modules'],
  ],
  verify: [
    ['lpq verify OUT --against Q', 'compare every packed byte with the quantized checkpoint'],
    ['lpq verify OUT --against Q --junit result.xml', 'the same for CI'],
  ],
  eval: [
    ['lpq eval Q --text book.txt --ctx 2048', 'perplexity'],
    ['lpq eval Q --text book.txt --source MODEL --report', 'before and after, added to the report'],
  ],
  compare: [
    ['lpq compare MODEL Q4 Q3 --text book.txt', 'a table'],
    ['lpq compare MODEL Q4 Q3 --text book.txt -o compare.html', 'and a page with a plot'],
  ],
  generate: [
    ['lpq generate OUT --prompt "The sea"', 'continue a text'],
    ['lpq generate OUT --chat --prompt "What is a whale?"', 'answer a question'],
  ],
  report: [
    ['lpq report Q', 'write the page of a run'],
    ['lpq report Q4 Q3 -o difference.html', 'two runs side by side'],
  ],
  inspect: [['lpq inspect MODEL', 'architecture, linears, sizes']],
  doctor: [
    ['lpq doctor', 'check this machine'],
    ['lpq doctor MODEL', 'find what would stop a run'],
  ],
  init: [['lpq init -o recipe.yaml', 'ask five questions and write a recipe']],
};

/** What help says of an option: its default as one types it. What it means without a value, its own description says. */
export function optionDescription({ description, defaultValue, required, optional }: Option): string {
  const shown = (required || optional) && defaultValue !== undefined;
  return shown ? `${description} (default: ${defaultValue})` : description;
}

/** Puts commands under headings, and examples below options. */
export function arrangeHelp(program: Command): void {
  for (const command of program.commands) {
    const group = GROUPS.find(([, names]) => names.includes(command.name()));
    if (group) command.helpGroup(group[0]);
  }
  for (const command of [program, ...program.commands]) {
    const examples = EXAMPLES[command === program ? '' : command.name()];
    if (examples) command.addHelpText('after', examplesText(examples));
  }
}

function examplesText(examples: readonly (readonly [string, string])[]): string {
  const width = Math.max(...examples.map(([command]) => command.length));
  return `\nExamples:\n${examples.map(([command, does]) => `  ${command.padEnd(width)}  ${does}`).join('\n')}`;
}
