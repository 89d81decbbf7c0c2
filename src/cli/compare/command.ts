import type { Command } from 'commander';
import type { BosMode } from '../../calibrate/prefix.js';
import { activationOptions } from '../options/activations.js';
import { BOS_OPTION, bosMode, integer } from '../options/parse.js';
import { type ComputeOptions, computeOptions, type Run } from '../run.js';

export interface CompareFlags extends ComputeOptions {
  readonly text?: string;
  readonly ctx: number;
  readonly windows?: number;
  readonly bos?: BosMode;
  readonly source?: string;
  readonly speed?: boolean;
  readonly output?: string;
}

/** `lpq compare A B...`: sizes, perplexity and divergence of several checkpoints, as a table and as a page. */
export function compareCommand(program: Command, run: Run): Command {
  return computeOptions(
    activationOptions(
      program
        .command('compare')
        .description('show sizes, perplexity, KL and speed of several checkpoints side by side')
        .argument(
          '<dirs...>',
          'checkpoints: plain, quantized or packed, or ORG/NAME[@REVISION] on the Hub; the others are compared with a plain one in first place',
        )
        .option('--text <file>', 'a text file, or .jsonl with {"text": ...} lines (default: pages of a bundled book)')
        .option('--ctx <n>', 'tokens in a window', integer('--ctx', 2), 512)
        .option(
          '--windows <n>',
          'read only the first n windows (default: all; 16 of the bundled text)',
          integer('--windows', 1),
        )
        .option('--bos <kind>', BOS_OPTION, bosMode, 'auto')
        .option('--source <dir>', 'the checkpoint to measure KL from, if it is not the first')
        .option('--speed', 'also time generation (always done on a GPU)')
        .option('-o, --output <file>', 'also write an HTML page with a plot of quality over size'),
    ),
  ).action(async (dirs: string[], flags: CompareFlags) => (await import('./run.js')).compare(dirs, flags, run));
}
