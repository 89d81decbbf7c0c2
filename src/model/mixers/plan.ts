import { type Config, positive, settingNumber } from '../config.js';
import type { BranchPlan, LinearPlan, NormMaker } from '../plan.js';
import type { BlockParts } from '../plan-attention.js';
import { type ShortConvPlan, shortConvPlan } from './plan-conv.js';
import { type DeltaCore, deltaPlan } from './plan-delta.js';
import { type Mamba2Core, type MambaCore, mamba2Plan, mambaPlan } from './plan-mamba.js';
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
export type MixerCore = ConvCore | DeltaCore | Mamba2Core | MambaCore;

export interface ConvCore {
  readonly kind: 'conv';
  readonly conv: ShortConvPlan;
}

/** Resolves the mixer of a block; undefined for a block with attention. Throws LPQ_CONFIG. */
export type MixerPlanner = (parts: BlockParts) => RecurrentPlan | undefined;

/** Resolves what all blocks share. Throws LPQ_CONFIG. */
export function mixerPlanner(
  config: Config,
  table: RecurrentTable | undefined,
  hidden: number,
  norm: NormMaker,
): MixerPlanner {
  if (!table) return () => undefined;
  const { mixer } = table;
  return (parts) => {
    if (!table.blocks.beside && !isRecurrent(config, table.blocks, parts)) return undefined;
    return { kind: 'recurrent', ...parts.branch(table.names), ...mixerParts(config, mixer, hidden, norm, parts) };
  };
}

function mixerParts(
  config: Config,
  mixer: RecurrentTable['mixer'],
  hidden: number,
  norm: NormMaker,
  parts: BlockParts,
): MixerParts {
  switch (mixer.kind) {
    case 'conv':
      return convPlan(config, mixer, hidden, parts);
    case 'delta':
      return deltaPlan(config, mixer, hidden, norm, parts);
    case 'mamba2':
      return mamba2Plan(config, mixer, hidden, norm, parts);
    case 'mamba':
      return mambaPlan(config, mixer, hidden, norm, parts);
  }
}

function isRecurrent(config: Config, blocks: RecurrentBlocks, { index, layers }: BlockParts): boolean {
  const types = config.list('layer_types', 'string');
  if (types.length === 0 && !blocks.stated) {
    const { attentionList, attentionEvery } = blocks;
    if (attentionList !== undefined && config.has(attentionList))
      return !config.list(attentionList, 'number').includes(index);
    if (attentionEvery === undefined) return false;
    const every = positive(config, attentionEvery);
    const { attentionOffset } = blocks;
    return index % every !== (attentionOffset === undefined ? every - 1 : settingNumber(config, attentionOffset));
  }
  const type = types[index];
  const own = typeof blocks.type === 'string' ? [blocks.type] : blocks.type;
  const known = [...own, ...blocks.attention];
  if (type !== undefined && types.length === layers && known.includes(type)) return own.includes(type);
  throw config.error(
    'layer_types',
    `does not say what block ${index} is`,
    type ?? `${types.length} entries`,
    `${layers} entries, each ${known.join(' or ')}`,
  );
}

/** What a kind of mixer makes of its table. */
export type MixerParts = Pick<RecurrentPlan, 'feed' | 'kept' | 'core' | 'o'>;

function convPlan(config: Config, table: ConvTable, hidden: number, { prefix, linear }: BlockParts): MixerParts {
  const bias = config.flag(table.bias);
  const { names } = table;
  return {
    feed: [linear(prefix + names.input, 3 * hidden, hidden, bias)],
    kept: [],
    core: { kind: 'conv', conv: shortConvPlan(config, table.taps, prefix + names.conv, hidden, bias) },
    o: linear(prefix + names.output, hidden, hidden, bias),
  };
}
