import type { Architecture, AttentionTable, WindowTable } from './architecture.js';
import { type Config, settingNumber } from './config.js';
import type { BranchPlan, LinearPlan, NormMaker, NormPlan, RopePlan } from './plan.js';
import { ropeSpec } from './rope.js';

/** Grouped-query attention of one block. */
export interface AttentionPlan extends BranchPlan {
  readonly kind: 'attention';
  /** Linears of their own; where `fused` is set, its parts: N of each, and the name of the whole. */
  readonly q: LinearPlan;
  readonly k: LinearPlan;
  readonly v: LinearPlan;
  /** One linear for q, k and v. heads: its rows go head by head, those of q, k and v of each together. */
  readonly fused: { readonly linear: LinearPlan; readonly order: 'parts' | 'heads' } | undefined;
  readonly o: LinearPlan;
  readonly qNorm: NormPlan | undefined;
  readonly kNorm: NormPlan | undefined;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  /** Multiplies q kᵀ. */
  readonly scale: number;
  /** c > 0: scores become c * tanh(score / c). */
  readonly softCap: number;
  /** Tokens seen, the own one included; 0 without a window. */
  readonly window: number;
  /** Full name of the tensor [heads] of sinks. */
  readonly sinks?: string;
  readonly rope: RopePlan | undefined;
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
  const kvHeads = config.count(kvKeys, heads);
  if (heads % kvHeads !== 0)
    throw config.error(kvKeys[0] as string, `does not divide ${headKeys[0]}`, kvHeads, `a divisor of ${heads}`);
  const headDim = config.count(['head_dim'], table.headDim === 'hidden/heads' ? hidden / heads : table.headDim);
  const { names } = table;
  const over = table.headNorm?.over ?? 'head';
  const normed = config.flag(table.headNorm?.enabled ?? true);
  const headNorm = (name: string | undefined, count: number): NormPlan | undefined => {
    if (name === undefined || !normed) return undefined;
    if (over === 'all') return norm(name, count * headDim);
    return norm(name, headDim, over === 'own-head' ? count : 1);
  };
  return ({ prefix, index, layers, linear, branch }) => {
    const sliding = isSliding(config, table.window, index, layers);
    const [qn, kn] = [heads * headDim, kvHeads * headDim];
    const bias = {
      q: config.flag(table.bias.q),
      k: config.flag(table.bias.k),
      v: config.flag(table.bias.v),
      o: config.flag(table.bias.o),
    };
    const part = (name: string, n: number, has: boolean) => linear(prefix + name, n, hidden, has);
    const separate = 'q' in names ? names : { q: names.qkv, k: names.qkv, v: names.qkv };
    return {
      kind: 'attention',
      ...branch(names),
      q: part(separate.q, qn, bias.q),
      k: part(separate.k, kn, bias.k),
      v: part(separate.v, kn, bias.v),
      fused: 'qkv' in names ? { linear: part(names.qkv, qn + 2 * kn, bias.q), order: names.order } : undefined,
      o: linear(prefix + names.o, hidden, qn, bias.o),
      qNorm: headNorm(names.qNorm && prefix + names.qNorm, heads),
      kNorm: headNorm(names.kNorm && prefix + names.kNorm, kvHeads),
      heads,
      kvHeads,
      headDim,
      scale: scaleOf(config, table, headDim, index),
      softCap: config.optional(table.softCap),
      window: sliding ? windowSize(config, table.window) : 0,
      ...(names.sinks !== undefined && { sinks: prefix + names.sinks }),
      rope:
        table.rope && (sliding || !table.rope.slidingOnly)
          ? ropeSpec(config, table.rope, headDim, sliding, architecture.sizes?.positions)
          : undefined,
    };
  };
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
  return config.flag(scale?.byLayer ?? false) ? value / (index + 1) : value;
}

function windowSize(config: Config, window: WindowTable): number {
  return config.has('sliding_window') ? config.count(['sliding_window'], 0, 0) : (window.otherwise ?? 0);
}

function isSliding(config: Config, window: WindowTable, index: number, layers: number): boolean {
  if (!config.flag(window.enabled)) return false;
  const types = window.layerTypes ? config.list('layer_types', 'string') : [];
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
