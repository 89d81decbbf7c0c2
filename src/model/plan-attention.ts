import type { Architecture } from './architecture.js';
import { type Config, positive, settingNumber } from './config.js';
import type { BranchPlan, LinearPlan, NormMaker, NormPlan, RopePlan } from './plan.js';
import { blockIndexer, type IndexerPlan } from './plan-indexer.js';
import { attentionSizes, sharingOf } from './plan-sharing.js';
import { ropeParameters, ropeSpec } from './rope.js';
import type { AttentionTable, HeadNormTable, WindowTable } from './tables/attention.js';
import type { RopeTable } from './tables/rope.js';

/** Grouped-query attention of one block. */
export interface AttentionPlan extends BranchPlan {
  readonly kind: 'attention';
  /** Of the block among the model's. */
  readonly index: number;
  /** Linears of their own; where `fused` is set, its parts: N of each, and the name of the whole. */
  readonly q: LinearPlan;
  readonly k: LinearPlan;
  readonly v: LinearPlan;
  /** One linear for q, k and v. heads: its rows go head by head, those of q, k and v of each together. */
  readonly fused: { readonly linear: LinearPlan; readonly order: 'parts' | 'heads' } | undefined;
  readonly o: LinearPlan;
  readonly qNorm: NormPlan | undefined;
  readonly kNorm: NormPlan | undefined;
  /** Without a weight. */
  readonly vNorm?: NormPlan;
  /** True: there is no v; values are what k makes, before its norm. */
  readonly keysAsValues?: true;
  /** Index of the block whose keys and values this one reads: it has neither k nor v. */
  readonly reads?: number;
  /** Keys and values are read by later blocks, too: the index under which they are kept. */
  readonly kept?: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Dimensions of a head's value. */
  readonly valueDim: number;
  /** q has the rows of each head and then those of its output's gate. */
  readonly outputGate?: true;
  /** Multiplies values. */
  readonly valueScale: number;
  /** Multiplies q kᵀ. */
  readonly scale: number;
  /** c > 0: scores become c * tanh(score / c). */
  readonly softCap: number;
  /** Tokens seen, the own one included; 0 without a window. */
  readonly window: number;
  /** Full name of the tensor [heads] of sinks. */
  readonly sinks?: string;
  readonly rope: RopePlan | undefined;
  /** True: norms of q and k come after the rotation. */
  readonly normsLast?: true;
  /** Tokens see only those of their own run of so many; 0: all. */
  readonly chunk: number;
  /** Queries are multiplied by what TemperatureTable says of their positions. */
  readonly temperature?: TemperaturePlan;
  /** Tokens see the runs of keys that it chooses. */
  readonly indexer?: IndexerPlan;
}

export interface TemperaturePlan {
  readonly beta: number;
  readonly length: number;
  readonly offset: number;
}

/** What a block's attention and MLP share. */
export interface BlockParts {
  readonly prefix: string;
  readonly index: number;
  readonly layers: number;
  readonly linear: (name: string, n: number, k: number, bias: boolean) => LinearPlan;
  readonly branch: (names: { readonly norm?: string; readonly postNorm?: string }) => BranchPlan;
}

/** Resolves what all blocks share; the result resolves one block. Throws LPQ_CONFIG. */
export function attentionPlanner(
  config: Config,
  architecture: Architecture,
  hidden: number,
  norm: NormMaker,
): (parts: BlockParts) => AttentionPlan {
  const table = architecture.attention;
  const headKeys = architecture.sizes?.heads ?? ['num_attention_heads'];
  const heads = config.count(headKeys);
  const kvKeys = architecture.sizes?.kvHeads ?? ['num_key_value_heads'];
  const stated = config.count(kvKeys, heads);
  const { slidingKvHeads = 1 } = table;
  const requireDivisor = (kvHeads: number, most: number): void => {
    if (most % kvHeads !== 0)
      throw config.error(kvKeys[0] as string, `does not divide ${headKeys[0]}`, kvHeads, `a divisor of ${most}`);
  };
  requireDivisor(stated, heads / slidingKvHeads);
  const quotient = table.headDim === 'hidden/heads' || config.has('head_dim');
  const common = config.count(['head_dim'], quotient ? hidden / heads : (table.headDim as number));
  const valueScale = table.valueScale === undefined ? 1 : config.optional(table.valueScale) || 1;
  const { names } = table;
  const normed = config.flag(table.headNorm?.enabled ?? true);
  const headNorm = (name: string | undefined, count: number, turns: boolean, dim: number): NormPlan | undefined => {
    const { bare } = table.headNorm ?? {};
    if (!normed || (bare ? !turns : name === undefined)) return undefined;
    return headNormPlan(norm, table.headNorm, name ?? '', dim, count);
  };
  const temperature = temperaturePlan(config, table);
  const indexer = table.indexer && blockIndexer(config, table.indexer, { hidden, heads }, norm);
  return (parts) => {
    const { prefix, index, layers, linear, branch } = parts;
    const turns =
      table.rope !== undefined && !turnsNothing(config, table.rope) && !skipsRotation(config, table.rope, index);
    const sliding = isSliding(config, table.window, index, layers, turns);
    const kinds = { headDim: common, kvHeads: sliding ? stated * slidingKvHeads : stated };
    const { headDim, kvHeads, keysAsValues } = attentionSizes(config, table, index, sliding, kinds);
    requireDivisor(kvHeads, heads);
    const valueDim = table.valueDim ? config.count(table.valueDim, headDim) : headDim;
    const shared = sharingOf(config, table, index, layers, (at) => isSliding(config, table.window, at, layers, turns));
    const [qn, kn, vn] = [heads * headDim, kvHeads * headDim, kvHeads * valueDim];
    const bias = {
      q: config.flag(table.bias.q),
      k: config.flag(table.bias.k),
      v: config.flag(table.bias.v),
      o: config.flag(table.bias.o),
    };
    const part = (name: string, n: number, has: boolean) => linear(prefix + name, n, hidden, has);
    const separate = 'q' in names ? names : { q: names.qkv, k: names.qkv, v: names.qkv };
    const rope =
      table.rope && turns && (sliding || !slidingOnly(config, table))
        ? ropeSpec(config, table.rope, headDim, sliding, architecture.sizes?.positions)
        : undefined;
    const chooser = indexer?.(parts, rope);
    return {
      kind: 'attention',
      index,
      ...branch(names),
      q: part(separate.q, table.outputGate ? 2 * qn : qn, bias.q),
      ...(table.outputGate && { outputGate: true }),
      k: part(separate.k, kn, bias.k),
      v: part(separate.v, vn, bias.v),
      fused: 'qkv' in names ? { linear: part(names.qkv, qn + kn + vn, bias.q), order: names.order } : undefined,
      o: linear(prefix + names.o, hidden, heads * valueDim, bias.o),
      qNorm: headNorm(names.qNorm && prefix + names.qNorm, heads, turns, headDim),
      kNorm:
        shared.reads === undefined ? headNorm(names.kNorm && prefix + names.kNorm, kvHeads, turns, headDim) : undefined,
      ...(table.valueNorm && { vNorm: { ...norm('', valueDim), weight: undefined } }),
      ...(keysAsValues && { keysAsValues: true as const }),
      ...shared,
      heads,
      kvHeads,
      headDim,
      valueDim,
      valueScale,
      scale: scaleOf(config, table, headDim, index),
      softCap: config.optional(table.softCap),
      window: sliding ? windowSize(config, table.window) : 0,
      ...(names.sinks !== undefined && (sliding || !table.slidingSinks) && { sinks: prefix + names.sinks }),
      rope,
      ...(chooser && { indexer: chooser }),
      ...(table.headNorm?.afterRotation && { normsLast: true }),
      chunk: chunkOf(config, table, index, turns),
      ...(temperature && !(turns && table.temperature?.unrotated) && { temperature }),
    };
  };
}

function headNormPlan(
  norm: NormMaker,
  table: HeadNormTable | undefined,
  name: string,
  headDim: number,
  count: number,
): NormPlan {
  const over = table?.over ?? 'head';
  const made = over === 'all' ? norm(name, count * headDim) : norm(name, headDim, over === 'own-head' ? count : 1);
  return {
    ...made,
    ...(table?.bias === false && { bias: undefined }),
    ...(table?.bare && { weight: undefined }),
    ...(over === 'own-head' && name.includes('{head}') && { split: true }),
  };
}

/** Undefined where queries stay as they are. */
function temperaturePlan(config: Config, { temperature, rope }: AttentionTable): TemperaturePlan | undefined {
  if (!temperature) return undefined;
  const { keys, otherwise } = temperature.enabled ?? { keys: [], otherwise: true };
  if (!(config.find(...keys)?.value ?? otherwise)) return undefined;
  const from = temperature.from === 'rope' && rope ? ropeParameters(config, rope) : config;
  if (!from) return undefined;
  const beta = settingNumber(from, temperature.beta);
  return beta === 0 ? undefined : { beta, length: positive(from, temperature.length), offset: temperature.offset };
}

function scaleOf(config: Config, { scale }: AttentionTable, headDim: number, index: number): number {
  let value = 1 / Math.sqrt(headDim);
  if (scale?.rootOf !== undefined) value = 1 / Math.sqrt(settingNumber(config, scale.rootOf));
  else if (scale?.factor !== undefined) value = settingNumber(config, scale.factor);
  if (!Number.isFinite(value) || value <= 0) {
    const setting = scale?.rootOf ?? scale?.factor;
    const key = typeof setting === 'object' ? (setting.keys[0] as string) : 'head_dim';
    throw config.error(key, 'gives no scale for attention', value, 'a positive number');
  }
  if (!config.flag(scale?.enabled ?? true)) value = 1;
  for (const times of scale?.times ?? []) value *= positive(config, times);
  return config.flag(scale?.byLayer ?? false) ? value / (index + 1) : value;
}

function chunkOf(config: Config, { chunk }: AttentionTable, index: number, turns: boolean): number {
  if (chunk === undefined) return 0;
  const types = config.list('layer_types', 'string');
  if (types.length === 0) return turns ? config.optional(chunk) : 0;
  const type = types[index];
  if (type === 'chunked_attention' || type === 'full_attention')
    return type === 'full_attention' ? 0 : config.optional(chunk);
  throw config.error(
    'layer_types',
    `does not say what block ${index} is`,
    type ?? `${types.length} entries`,
    'chunked_attention or full_attention',
  );
}

function slidingOnly(config: Config, { rope, window }: AttentionTable): boolean {
  return rope?.slidingOnly === 'always' || (rope?.slidingOnly === 'if-windowed' && windowSize(config, window) > 0);
}

/** Whether config.json says that nothing is rotated: in a key, or by an explicit null in the place of a theta, where the class knows that. */
function turnsNothing(config: Config, table: RopeTable): boolean {
  if (table.when && config.find(table.when.key)?.value !== table.when.is) return true;
  if (!table.nullable) return false;
  const inner = ropeParameters(config, table);
  const holder = inner?.has('rope_theta') ? inner : config;
  return holder.has('rope_theta') && holder.find('rope_theta') === undefined;
}

/** Whether a block rotates nothing, by the list of config.json or every so-many-th. */
function skipsRotation(config: Config, { skip }: RopeTable, index: number): boolean {
  if (!skip) return false;
  const list = config.list(skip.list, 'number');
  if (list.length === 0) return (index + 1) % positive(config, skip.every) === 0;
  const turns = list[index];
  if (turns === 0 || turns === 1) return turns === 0;
  throw config.error(
    skip.list,
    `does not say whether block ${index} rotates`,
    turns ?? `${list.length} entries`,
    '0 or 1',
  );
}

function windowSize(config: Config, window: WindowTable): number {
  return config.has('sliding_window') ? config.count(['sliding_window'], 0, 0) : (window.otherwise ?? 0);
}

function isSliding(config: Config, window: WindowTable, index: number, layers: number, turns: boolean): boolean {
  if (!config.flag(window.enabled) || (window.lastFull && index === layers - 1)) return false;
  const types = window.layerTypes ? config.list('layer_types', 'string') : [];
  if (types.length === 0 && window.unrotated) return !turns;
  if (types.length === 0 && window.alternateUpTo !== undefined)
    return index % 2 === 0 && index < settingNumber(config, window.alternateUpTo);
  if (types.length === 0) {
    const every = window.fullEvery === undefined ? 0 : settingNumber(config, window.fullEvery);
    return index >= settingNumber(config, window.fullBlocks) && !(every > 0 && (index + 1) % every === 0);
  }
  const type = types[index];
  if (types.length !== layers || (type !== 'sliding_attention' && type !== 'full_attention'))
    throw config.error(
      'layer_types',
      `does not say what block ${index} is`,
      type ?? `${types.length} entries`,
      `${layers} entries, each sliding_attention or full_attention`,
    );
  return type === 'sliding_attention';
}
