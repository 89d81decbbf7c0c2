import type { Command } from 'commander';
import { activationOptions } from '../options/activations.js';
import { modelDirectory } from '../options/hub.js';
import { collect, integer, number } from '../options/parse.js';
import { kvOptions } from '../quantize/method.js';
import { type ComputeOptions, computeOptions, type Run } from '../run.js';

export interface GenerateFlags extends ComputeOptions {
  readonly prompt?: readonly string[];
  readonly prompts?: string;
  readonly chat?: boolean;
  readonly system?: string;
  readonly maxTokens?: number;
  readonly stop?: readonly string[];
  readonly ignoreEos?: boolean;
  readonly temperature?: number;
  readonly topK?: number;
  readonly topP?: number;
  readonly seed: number;
  readonly kv?: string;
  readonly kernels?: boolean;
}

/** `lpq generate DIR --prompt TEXT`: text from a plain, quantized or packed checkpoint. */
export function generateCommand(program: Command, run: Run): Command {
  return computeOptions(
    activationOptions(
      kvOptions(
        program
          .command('generate')
          .description('continue texts or answer conversations with a plain, quantized or packed checkpoint')
          .argument(
            '<dir>',
            'directory of the checkpoint, a .gguf file, or ORG/NAME[@REVISION] of the Hugging Face Hub',
          )
          .option('--prompt <text>', 'a text to go on from; several are computed at once', collect)
          .option(
            '--prompts <file>',
            '.jsonl with {"prompt": ...} or {"messages": ...} lines, or a text file, one prompt',
          )
          .option('--chat', "prompts are questions: the model's chat template prints them")
          .option('--system <text>', 'with --chat: what the conversation begins with')
          .option('--max-tokens <n>', 'tokens for each prompt (default: 128, or what fits)', integer('--max-tokens', 1))
          .option('--stop <text>', 'ends a text, besides the end-of-text tokens; may be given again', collect)
          .option('--ignore-eos', 'go on behind end-of-text tokens')
          .option('--temperature <t>', 'draw tokens; 0: always the likeliest (default: 0)', number('--temperature'))
          .option('--top-k <k>', 'draw among the k likeliest (default: all)', integer('--top-k', 0))
          .option('--top-p <share>', 'draw among the likeliest of this share (default: 1)', number('--top-p'))
          .option('--seed <s>', 'of what is drawn', integer('--seed', 0), 0)
          .option('--kernels', 'multiply packed weights as their kernels do on the CPU too, not as decoded'),
        true,
      ),
    ),
  ).action((dir: string, flags: GenerateFlags) => generateText(dir, flags, run));
}

async function generateText(given: string, flags: GenerateFlags, run: Run): Promise<void> {
  const dir = await modelDirectory(given, run);
  return (await import('./run.js')).generateFrom(dir, flags, run);
}
