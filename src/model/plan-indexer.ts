import { type Config, type Setting, settingNumber } from './config.js';
import type { AttentionPlan, BlockPlan, LinearPlan, NormMaker, NormPlan } from './plan.js';
import type { BlockParts } from './plan-attention.js';
import type { MlaPlan } from './plan-mla.js';
import type { RopeSpec } from './rope.js';

/**
 * The lightning indexer beside latent attention (DeepSeek-V3.2, arXiv:2512.02556, section 2.1): heads of its own score all earlier
 * tokens, and attention sees the best of them (native/ops/selected.h). Names are those of linears, but for `norm`.
 */
export interface IndexerTable {
  readonly names: {
    /** From the compressed queries. */
    readonly q: string;
    /** From what attention reads: one key a token, and a weight for each head. */
    readonly k: string;
    readonly weights: string;
    /** A LayerNorm of keys, with a bias. */
    readonly norm: string;
  };
  /** Keys of config.json: heads, their dimensions, and how many tokens attention sees. */
  readonly heads: readonly string[];
  readonly dim: readonly string[];
  readonly top: readonly string[];
  /** Whether pairs of the first dimensions that turn are neighbours. */
  readonly interleaved: Setting<boolean>;
  /** Blocks without an indexer see what the last one before them chose. */
  readonly shared?: SharedIndexers;
  /** What of it stays in 16 bits unless asked for otherwise, and why. */
  readonly carried: Readonly<Record<string, string>>;
}

/** Keys of config.json: a list of 'full' or 'shared', the same as letters, or from which block on every so-many-th is full. */
export interface SharedIndexers {
  readonly list: string;
  readonly letters: string;
  readonly every: Setting<number>;
  readonly offset: Setting<number>;
}

/** Why linears of indexers are carried. */
export const INDEXERS_STAY =
  'a hundredth of the block; an error in a score decides which tokens are seen, which nothing behind it makes up for';

/** An indexer's linears, and what of its scores is seen. Names are full. */
export interface IndexerPlan {
  readonly kind: 'own';
  readonly q: LinearPlan;
  readonly k: LinearPlan;
  readonly qNorm?: NormPlan;
  readonly kNorm: NormPlan;
  /** Where heads choose together. */
  readonly weights?: LinearPlan;
  readonly heads: number;
  readonly dim: number;
  /** So many runs of `block` tokens are seen, `local` of which are the newest. */
  readonly top: number;
  readonly block: number;
  readonly local: number;
  readonly rope: RopeSpec;
  /** True: the blocks behind this one see the same. */
  readonly kept: boolean;
}

/** What the last indexer before chose is seen. */
export interface SharedIndexerPlan {
  readonly kind: 'shared';
  readonly top: number;
  readonly block: number;
  /** True: so do the blocks behind this one. */
  readonly kept: boolean;
}

/** Linears of an indexer that read what attention reads. */
export function indexerReaders(attention: BlockPlan['attention'] | AttentionPlan | MlaPlan): LinearPlan[] {
  const indexer = 'indexer' in attention ? attention.indexer : undefined;
  if (indexer?.kind !== 'own') return [];
  return [indexer.k, ...(indexer.weights ? [indexer.weights] : [indexer.q])];
}

/** Resolves what all blocks share; the result resolves one block. Throws LPQ_CONFIG. */
export function latentIndexer(
  config: Config,
  table: IndexerTable,
  { hidden, queryRank, rope }: { hidden: number; queryRank: number | undefined; rope: RopeSpec },
  norm: NormMaker,
): (parts: BlockParts) => IndexerPlan | SharedIndexerPlan {
  const [heads, dim, top] = [config.count(table.heads), config.count(table.dim), config.count(table.top)];
  if (queryRank === undefined)
    throw config.error('q_lora_rank', 'is missing: the indexer reads compressed queries', null, 'a positive integer');
  if (dim < rope.rotary)
    throw config.error(table.dim[0] as string, 'is less than what turns of a head', dim, `at least ${rope.rotary}`);
  const style = config.flag(table.interleaved) ? 'interleaved' : 'half';
  const { names } = table;
  return ({ prefix, index, layers, linear }) => {
    const kept = index + 1 < layers && isShared(config, table.shared, index + 1, layers);
    if (isShared(config, table.shared, index, layers)) return { kind: 'shared', top, block: 1, kept };
    const named = (name: string, n: number, k: number) => linear(prefix + name, n, k, false);
    return {
      kind: 'own',
      q: named(names.q, heads * dim, queryRank),
      k: named(names.k, dim, hidden),
      kNorm: {
        ...norm(prefix + names.norm, dim),
        kind: 'layer',
        bias: `${prefix}${names.norm}.bias`,
        epsilon: 1e-6,
        offset: 0,
      },
      weights: named(names.weights, heads, hidden),
      ...{ heads, dim, top, block: 1, local: 0 },
      rope: { ...rope, style },
      kept,
    };
  };
}

function isShared(config: Config, shared: SharedIndexers | undefined, index: number, layers: number): boolean {
  if (!shared) return false;
  const kind = kindOf(config, shared, index, layers);
  if (index > 0 || kind === 'full') return kind === 'shared';
  throw config.error(shared.list, 'gives block 0 no indexer, and there is none before it', kind, 'full');
}

function kindOf(config: Config, shared: SharedIndexers, index: number, layers: number): 'full' | 'shared' {
  const { list, letters, every, offset } = shared;
  const written = config.find(list, letters);
  if (!written) {
    const from = index - settingNumber(config, offset) + 1;
    return Math.max(from, 0) % Math.max(settingNumber(config, every), 1) === 0 ? 'full' : 'shared';
  }
  const kinds = typeof written.value === 'string' ? [...written.value] : config.list(written.key, 'string');
  const kind = { F: 'full', S: 'shared', full: 'full', shared: 'shared' }[kinds[index] as string];
  if (kinds.length >= layers && (kind === 'full' || kind === 'shared')) return kind;
  throw config.error(
    written.key,
    `does not say whether block ${index} has an indexer`,
    kinds[index] ?? `${kinds.length} entries`,
    `${layers} entries, each full or shared`,
  );
}

/**
 * An indexer of runs of keys (MiniMax-M3): each of its heads chooses for as many neighbouring heads of attention (native/ops/selected.h).
 * Names are those of linears and norms.
 */
export interface BlockIndexerTable {
  readonly names: { readonly q: string; readonly k: string; readonly qNorm: string; readonly kNorm: string };
  /** What `layer_types` calls blocks that have one. */
  readonly type: string;
  /** Keys of config.json, and what they are called in an object of older files, which counts where it is there. */
  readonly sizes: Readonly<
    Record<'heads' | 'dim' | 'block' | 'top' | 'local', { readonly key: string; readonly older: string }>
  >;
  readonly older: { readonly object: string; readonly list: string };
  readonly carried: Readonly<Record<string, string>>;
}

/** Resolves what all blocks share; the result resolves one block, undefined where tokens see all before them. Throws LPQ_CONFIG. */
export function blockIndexer(
  config: Config,
  table: BlockIndexerTable,
  { hidden, heads: most }: { hidden: number; heads: number },
  norm: NormMaker,
): (parts: BlockParts, rope: RopeSpec | undefined) => IndexerPlan | undefined {
  const older = config.object(table.older.object);
  const { names, sizes } = table;
  const size = (name: keyof typeof sizes, least = 1): number =>
    older?.find(sizes[name].older)
      ? older.count([sizes[name].older], undefined, least)
      : config.count([sizes[name].key], undefined, least);
  return ({ prefix, index, layers, linear }, rope) => {
    if (!hasIndexer(config, table, older, index, layers)) return undefined;
    const [heads, dim] = [size('heads'), size('dim')];
    if (most % heads !== 0)
      throw config.error(sizes.heads.key, 'does not divide the heads of attention', heads, `a divisor of ${most}`);
    if (rope === undefined || dim < rope.rotary)
      throw config.error(sizes.dim.key, 'is less than what turns of a head', dim, `at least ${rope?.rotary ?? dim}`);
    const named = (name: string, n: number) => linear(prefix + name, n, hidden, false);
    return {
      kind: 'own',
      q: named(names.q, heads * dim),
      k: named(names.k, dim),
      qNorm: norm(prefix + names.qNorm, dim),
      kNorm: norm(prefix + names.kNorm, dim),
      ...{ heads, dim, top: size('top'), block: size('block'), local: size('local', 0) },
      rope,
      kept: false,
    };
  };
}

function hasIndexer(
  config: Config,
  { type, older: { list } }: BlockIndexerTable,
  older: Config | undefined,
  index: number,
  layers: number,
): boolean {
  const types = config.list('layer_types', 'string');
  if (types.length === 0) return older?.find(list) ? (older.list(list, 'number')[index] ?? 0) !== 0 : false;
  const found = types[index];
  if (types.length === layers && (found === type || found === 'full_attention')) return found === type;
  throw config.error(
    'layer_types',
    `does not say what block ${index} is`,
    found ?? `${types.length} entries`,
    `${layers} entries, each ${type} or full_attention`,
  );
}
