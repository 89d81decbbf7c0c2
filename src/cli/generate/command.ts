import type { Command } from 'commander';
import { activationOptions } from '../options/activations.js';
import { modelDirectory } from '../options/hub.js';
import { collect, integer, number } from '../options/parse.js';
import { productsOption } from '../options/products.js';
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
    productsOption(
      activationOptions(
        kvOptions(
          program
            .command('generate')
            .description('continue texts or answer conversations with a plain, quantized or packed checkpoint')
            .argument(
              '<dir>',
              'directory of the checkpoint, a .gguf file, or ORG/NAME[@REVISION] on the Hugging Face Hub',
            )
            .option('--prompt <text>', 'text to continue; repeat it for several at once', collect)
            .option(
              '--prompts <file>',
              '.jsonl with {"prompt": ...} or {"messages": ...} lines, or a text file that is one prompt',
            )
            .option('--chat', "treat prompts as questions in the model's chat template")
            .option('--system <text>', 'with --chat: the system message')
            .option(
              '--max-tokens <n>',
              'tokens for each prompt (default: 128, or what fits)',
              integer('--max-tokens', 1),
            )
            .option(
              '--stop <text>',
              'string that ends a text, in addition to the end-of-text tokens; may be repeated',
              collect,
            )
            .option('--ignore-eos', 'continue after end-of-text tokens')
            .option(
              '--temperature <t>',
              'sampling temperature; 0 takes the likeliest token (default: 0)',
              number('--temperature'),
            )
            .option('--top-k <k>', 'sample among the k likeliest tokens (default: all)', integer('--top-k', 0))
            .option(
              '--top-p <share>',
              'sample among the likeliest tokens of this total probability (default: 1)',
              number('--top-p'),
            )
            .option('--seed <s>', 'seed of the sampling', integer('--seed', 0), 0)
            .option('--kernels', 'on the CPU too, multiply packed weights as their kernels do, not decoded ones'),
          true,
        ),
      ),
    ),
  ).action((dir: string, flags: GenerateFlags) => generateText(dir, flags, run));
}

async function generateText(given: string, flags: GenerateFlags, run: Run): Promise<void> {
  const dir = await modelDirectory(given, run);
  return (await import('./run.js')).generateFrom(dir, flags, run);
}
