import { type Config, keyOf, positive, type Setting, settingNumber } from '../config.js';
import type { LinearPlan, NormMaker, NormPlan } from '../plan.js';
import type { BlockParts } from '../plan-attention.js';
import type { Mamba2Table, MambaTable } from './mamba-table.js';
import type { MixerParts } from './plan.js';
import { type ShortConvPlan, shortConvPlan } from './plan-conv.js';

/** What both kinds hand to ops.selectiveScan. */
interface ScanPlan {
  readonly heads: number;
  readonly headDim: number;
  readonly groups: number;
  readonly size: number;
  readonly conv: ShortConvPlan;
  /** Full names of tensors. */
  readonly rate: string;
  readonly bias: string;
  readonly skip: string;
}

export interface Mamba2Core extends ScanPlan {
  readonly kind: 'mamba2';
  readonly least: number;
  /** Infinity: no bound. */
  readonly most: number;
  /** Of all channels, or of each group's in turn: `size` of them. */
  readonly norm: NormPlan | undefined;
  readonly normFirst: boolean;
  /** Columns of what `input` makes that are multiplied. */
  readonly scales: readonly { readonly first: number; readonly width: number; readonly factor: number }[];
}

export interface MambaCore extends ScanPlan {
  readonly kind: 'mamba';
  readonly rank: number;
  /** Both stay in 16 bits. */
  readonly select: LinearPlan;
  readonly step: LinearPlan;
  readonly stepNorm: NormPlan;
  readonly bNorm: NormPlan;
  readonly cNorm: NormPlan;
}

/** Throws LPQ_CONFIG. */
export function mamba2Plan(
  config: Config,
  table: Mamba2Table,
  hidden: number,
  norm: NormMaker,
  { prefix, linear }: BlockParts,
): MixerParts {
  const { names } = table;
  const [heads, groups, size] = [config.count(table.heads), config.count(table.groups, 1), config.count(table.size)];
  const stated = table.channels && config.number(table.channels);
  const wide = stated ?? hidden * positive(config, table.expand);
  const headDim = counted(config, table.headDim, wide / heads);
  const channels = heads * headDim;
  if (heads % groups !== 0)
    throw config.error(table.groups[0] as string, 'does not divide the heads', groups, `a divisor of ${heads}`);
  const [all, convolved] = [2 * channels + 2 * groups * size + heads, channels + 2 * groups * size];
  const grouped = table.norm.grouped ? channels / groups : channels;
  const normed = config.flag(table.norm.enabled);
  return {
    feed: [linear(prefix + names.input, all, hidden, config.flag(table.bias.input))],
    kept: [],
    core: {
      kind: 'mamba2',
      ...{ heads, headDim, groups, size },
      conv: shortConvPlan(config, table.taps, prefix + names.conv, convolved, config.flag(table.convBias)),
      rate: prefix + names.rate,
      bias: prefix + names.bias,
      skip: prefix + names.skip,
      ...limits(config, table.limit),
      norm: normed ? { ...norm(prefix + names.norm, grouped, channels / grouped), offset: 0 } : undefined,
      normFirst: config.flag(table.norm.first),
      scales: scalesOf(config, table, [channels, channels, groups * size, groups * size, heads]),
    },
    o: linear(prefix + names.output, hidden, channels, config.flag(table.bias.output)),
  };
}

/** A count, or what 'auto' stands for. */
function counted(config: Config, keys: readonly string[], auto: number): number {
  const found = config.find(...keys);
  if (found && found.value !== 'auto') return config.count(keys);
  if (Number.isSafeInteger(auto) && auto > 0) return auto;
  throw config.error(keys[0] as string, 'cannot be told of the other sizes', auto, 'a positive integer');
}

function limits(config: Config, limit: Mamba2Table['limit']): { least: number; most: number } {
  if ('least' in limit) return { least: settingNumber(config, limit.least), most: Number.POSITIVE_INFINITY };
  const list = config.find(limit.list)?.value ?? [0, Number.POSITIVE_INFINITY];
  const [least, most] = (Array.isArray(list) ? list : []).map(asNumber);
  if (least !== undefined && most !== undefined && least >= 0 && least <= most) return { least, most };
  throw config.error(limit.list, 'is not a pair of bounds', list, 'the least and the most step');
}

/** A number as transformers writes it into JSON, which has no infinity. */
function asNumber(value: unknown): number {
  const { __float__: written } = (value ?? {}) as { readonly __float__?: unknown };
  if (written === 'Infinity' || value === 'inf' || value === 'Infinity') return Number.POSITIVE_INFINITY;
  return typeof value === 'number' ? value : Number.NaN;
}

function scalesOf(config: Config, { multipliers }: Mamba2Table, widths: readonly number[]): Mamba2Core['scales'] {
  if (!multipliers) return [];
  const parts = config.list(multipliers.parts, 'number');
  if (parts.length !== 0 && parts.length !== widths.length)
    throw config.error(multipliers.parts, 'has not one number a part', parts.length, `${widths.length} numbers`);
  const whole = settingNumber(config, multipliers.input);
  let end = 0;
  return widths.flatMap((width, i) => {
    const first = end;
    end += width;
    const factor = whole * (parts[i] ?? 1);
    return factor === 1 ? [] : [{ first, width, factor }];
  });
}

/** Throws LPQ_CONFIG. */
export function mambaPlan(
  config: Config,
  table: MambaTable,
  hidden: number,
  norm: NormMaker,
  { prefix, linear }: BlockParts,
): MixerParts {
  const { names } = table;
  const size = config.count(table.size);
  const channels = hidden * whole(config, table.expand);
  const rank = counted(config, table.rank, Math.ceil(hidden / 16));
  const bias = config.flag(table.bias);
  return {
    feed: [linear(prefix + names.input, 2 * channels, hidden, bias)],
    kept: [],
    core: {
      kind: 'mamba',
      ...{ heads: 1, headDim: channels, groups: 1, size, rank },
      conv: shortConvPlan(config, table.taps, prefix + names.conv, channels, config.flag(table.convBias)),
      select: linear(prefix + names.select, rank + 2 * size, channels, false),
      // Its bias is added in the scan.
      step: linear(prefix + names.step, channels, rank, false),
      bias: `${prefix}${names.step}.bias`,
      rate: prefix + names.rate,
      skip: prefix + names.skip,
      stepNorm: norm(prefix + names.stepNorm, rank),
      bNorm: norm(prefix + names.bNorm, size),
      cNorm: norm(prefix + names.cNorm, size),
    },
    o: linear(prefix + names.output, hidden, channels, bias),
  };
}

function whole(config: Config, setting: Setting<number>): number {
  const value = settingNumber(config, setting);
  if (Number.isSafeInteger(value) && value > 0) return value;
  throw config.error(keyOf(setting), 'is no count', value, 'a positive integer');
}
