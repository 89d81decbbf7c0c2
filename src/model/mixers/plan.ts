import { type Config, keyOf, settingNumber } from '../config.js';
import type { BranchPlan, LinearPlan } from '../plan.js';
import type { BlockParts } from '../plan-attention.js';
import type { ConvTable, RecurrentBlocks, RecurrentTable } from './table.js';

/** The token mixer of a block without attention. */
export interface RecurrentPlan extends BranchPlan {
  readonly kind: 'recurrent';
  /** Linears that read the normed stream and are quantized. */
  readonly feed: readonly LinearPlan[];
  /** Linears that read it too, and stay in 16 bits. */
  readonly kept: readonly LinearPlan[];
  readonly core: MixerCore;
  /** From what the core makes back into the stream. */
  readonly o: LinearPlan;
}

/** What happens between the projections and o; names of tensors are full. */
export type MixerCore = ConvCore;

export interface ConvCore {
  readonly kind: 'conv';
  readonly conv: ShortConvPlan;
}

/** A causal convolution of `channels` over `taps` tokens: weight [channels, 1, taps], bias [channels]. */
export interface ShortConvPlan {
  readonly weight: string;
  readonly bias: string | undefined;
  readonly channels: number;
  readonly taps: number;
}

/** Resolves the mixer of a block; undefined for a block with attention. Throws LPQ_CONFIG. */
export type MixerPlanner = (parts: BlockParts) => RecurrentPlan | undefined;

/** Resolves what all blocks share. Throws LPQ_CONFIG. */
export function mixerPlanner(config: Config, table: RecurrentTable | undefined, hidden: number): MixerPlanner {
  if (!table) return () => undefined;
  const { mixer } = table;
  return (parts) => {
    if (!isRecurrent(config, table.blocks, parts)) return undefined;
    return { kind: 'recurrent', ...parts.branch(table.names), ...convPlan(config, mixer, hidden, parts) };
  };
}

function isRecurrent(config: Config, blocks: RecurrentBlocks, { index, layers }: BlockParts): boolean {
  const types = config.list('layer_types', 'string');
  if (types.length === 0) {
    const { attentionList } = blocks;
    return attentionList !== undefined && config.has(attentionList)
      ? !config.list(attentionList, 'number').includes(index)
      : false;
  }
  const type = types[index];
  const known = [blocks.type, ...blocks.attention];
  if (type !== undefined && types.length === layers && known.includes(type)) return type === blocks.type;
  throw config.error(
    'layer_types',
    `does not say what block ${index} is`,
    type ?? `${types.length} entries`,
    `${layers} entries, each ${known.join(' or ')}`,
  );
}

type Parts = Pick<RecurrentPlan, 'feed' | 'kept' | 'core' | 'o'>;

function convPlan(config: Config, table: ConvTable, hidden: number, { prefix, linear }: BlockParts): Parts {
  const bias = config.flag(table.bias);
  const { names } = table;
  return {
    feed: [linear(prefix + names.input, 3 * hidden, hidden, bias)],
    kept: [],
    core: { kind: 'conv', conv: shortConvPlan(config, table.taps, prefix + names.conv, hidden, bias) },
    o: linear(prefix + names.output, hidden, hidden, bias),
  };
}

function shortConvPlan(
  config: Config,
  setting: ConvTable['taps'],
  name: string,
  channels: number,
  bias: boolean,
): ShortConvPlan {
  const taps = settingNumber(config, setting);
  if (!Number.isSafeInteger(taps) || taps < 2 || taps > 64)
    throw config.error(keyOf(setting), 'is out of range', taps, 'an integer from 2 to 64');
  return { weight: `${name}.weight`, bias: bias ? `${name}.bias` : undefined, channels, taps };
}
