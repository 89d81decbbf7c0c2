import type { Command } from 'commander';
import { LpqError } from '../../core/error.js';
import type { Quantizer } from '../../quantize/quantizer.js';
import { groupSize, number } from '../options/parse.js';
import type { FullSettings, Settings } from './settings.js';

/** Flags of methodOptions, unchecked, under the names of the settings but for sym and asym. */
export interface MethodFlags {
  readonly sym?: boolean;
  readonly asym?: boolean;
  readonly [setting: string]: unknown;
}

/** Options that say how weights are stored and how that is reached: of every command that quantizes. */
export function methodOptions(command: Command): Command {
  return command
    .option('--bits <n>', 'an integer type of this many bits', number('--bits'))
    .option('--dtype <type>', 'any type: u1-u8, i2-i8, fBeXmY of 3 to 8 bits, mxfp4, nvfp4, ...')
    .option(
      '--group-size <g>',
      "weights that share a scale, or 'channel' (default: the largest of 128, 64, 32 that divides every module; channel for f8e4m3)",
      groupSize,
    )
    .option('--sym', 'symmetric grid (default)')
    .option('--asym', 'asymmetric grid, with zero points')
    .option('--scale-dtype <type>', 'f16, bf16, f32, e8m0 or e4m3 (default: f16)')
    .option('--sparsity <pattern>', '2:4: of every four weights along K two become 0 (default: none)')
    .option('--method <name>', 'gptq, rtn, or fmpq: activations of 4 and 8 bits (default: gptq)')
    .option('--order <kind>', 'static (act-order, static groups), group or none (default: static)')
    .option(
      '--gptaq <share>',
      "share of GPTAQ's correction, 0 to turn it off (default: 0.25, 0.5 with 2:4)",
      number('--gptaq'),
    )
    .option('--damp <fraction>', 'damping, as a fraction of mean(diag H) (default: 0.01)', number('--damp'))
    .option(
      '--scale-sign <which>',
      'scales of symmetric integers: either, or positive for engines that read no negative ones (default: either)',
    )
    .option('--samples <n>', 'calibration sequences (default: 128)', number('--samples'))
    .option('--seq-len <n>', 'tokens of a sequence (default: 512)', number('--seq-len'))
    .option('--seed <s>', 'of everything that is drawn at random (default: 0)', number('--seed'))
    .option('--lm-head', 'quantize lm_head too');
}

/** Options of --method fmpq. */
export function fmpqOptions(command: Command): Command {
  return command
    .option(
      '--act-int4-share <share>',
      'fmpq: share of the multiplications with 4-bit activations (default: 0.84)',
      number('--act-int4-share'),
    )
    .option(
      '--act-threshold <error>',
      'fmpq: instead, the relative squared error that 4 bits may add in a block',
      number('--act-threshold'),
    )
    .option('--act-search <kind>', 'fmpq: order of channels: swap, error, absmax or none (default: swap)')
    .option('--no-act-gather', 'fmpq: store no permutation where none can be folded')
    .option(
      '--act-scale <alpha>',
      'fmpq: balance between channels of activations and weights, 0 to turn it off (default: 0.5)',
      number('--act-scale'),
    )
    .option('--act-kv <bits>', 'fmpq: bits of keys and values, channel by channel (default: none)', number('--act-kv'));
}

/** Options about the cache of keys and values; `exact`: of a command that may also keep them as f16. */
export function kvOptions(command: Command, exact = false): Command {
  return command
    .option(
      '--kv <bits>',
      exact
        ? 'keep keys and values in 2, 4, 8 (packed) or 16 bits, or k8v4 (default: as lpq.json says, else exactly)'
        : 'pack the cache of keys and values: 2, 4, 8, or k8v4 (default: f16)',
    )
    .option('--kv-granularity <kind>', 'scales of keys by channel or by token (default: channel)')
    .option(
      '--kv-group <g>',
      '32, 64 or 128 tokens or dims that share a scale (default: 128; 32 for 2 bits)',
      number('--kv-group'),
    )
    .option(
      '--kv-residual <n>',
      'newest tokens up to which stay exact; 0: none (default: one block of the layout)',
      number('--kv-residual'),
    );
}

/** The flags that are settings, checked; a command's others are left to it. Throws LPQ_USAGE. */
export async function givenSettings({ sym, asym, actGather, ...rest }: MethodFlags): Promise<Settings> {
  const { checkFlags, settingsSchema } = await import('./settings.js');
  if (sym && asym) throw new LpqError('LPQ_USAGE', '--sym and --asym exclude each other');
  return checkFlags({
    ...Object.fromEntries(Object.entries(rest).filter(([name]) => Object.hasOwn(settingsSchema.shape, name))),
    ...(actGather === false && { actGather }),
    ...(sym && { symmetric: true }),
    ...(asym && { symmetric: false }),
  });
}

/** The quantizer that settings ask for; of fmpq the one that solves its weights. */
export async function quantizerFor(settings: FullSettings): Promise<Quantizer> {
  if (settings.method === 'rtn') return (await import('../../quantize/rtn-quantizer.js')).rtnQuantizer();
  const { gptqQuantizer } = await import('../../gptq/quantizer.js');
  const { GPTQ_DEFAULTS } = await import('../../gptq/options.js');
  const { order, damp, gptaq, scaleSign } = settings;
  return gptqQuantizer({ ...GPTQ_DEFAULTS, order, damp, alpha: gptaq, bothSigns: scaleSign === 'either' });
}
