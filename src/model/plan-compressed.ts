import { Config, settingNumber } from './config.js';
import type { BranchPlan, LinearPlan, NormMaker, NormPlan } from './plan.js';
import type { BlockParts } from './plan-attention.js';
import { type RopeSpec, ropeSpec } from './rope.js';

/** Names of what makes entries of runs of tokens: two linears, a tensor that is added to the second, and a norm. */
export interface CompressorNames {
  readonly x: string;
  readonly gate: string;
  readonly bias: string;
  readonly norm: string;
}

/**
 * DeepSeek-V4's attention: one key a token for all heads, which is its value, too; a window of tokens, and behind it entries that older
 * runs of tokens were compressed to (native/ops/compressed.h), all of few, or those of many that an indexer chooses.
 */
export interface CompressedTable {
  readonly names: {
    readonly norm: string;
    readonly qA: string;
    readonly qNorm: string;
    readonly qB: string;
    readonly kv: string;
    readonly kvNorm: string;
    readonly sinks: string;
    /** Groups of heads, each with its own rows. */
    readonly oA: string;
    readonly o: string;
    readonly compressor: CompressorNames;
    readonly indexer: { readonly q: string; readonly weights: string; readonly compressor: CompressorNames };
  };
  /** What `layer_types` calls blocks with a window alone, with all entries, and with an indexer. */
  readonly types: { readonly window: string; readonly all: string; readonly indexed: string };
  readonly carried: Readonly<Record<string, string>>;
}

/** Why other linears of such blocks are carried. */
export const COMPRESSORS_STAY =
  'a fiftieth of the block; an error in a share of a run stays in its entry for all later tokens';
export const GROUPS_STAY = 'rows that read different inputs, which no kernel of packed weights takes';

export interface CompressorPlan {
  readonly x: LinearPlan;
  readonly gate: LinearPlan;
  readonly bias: string;
  readonly norm: NormPlan;
  readonly rate: number;
  readonly dim: number;
}

export interface CompressedPlan extends BranchPlan {
  readonly kind: 'compressed';
  readonly qA: LinearPlan;
  readonly qNorm: NormPlan;
  readonly qB: LinearPlan;
  readonly kv: LinearPlan;
  readonly kvNorm: NormPlan;
  /** Full name of the tensor [heads]. */
  readonly sinks: string;
  readonly groups: number;
  readonly oA: LinearPlan;
  readonly o: LinearPlan;
  readonly heads: number;
  readonly kvHeads: 1;
  readonly headDim: number;
  readonly window: number;
  /** Of the norm of each head's query, without a weight. */
  readonly epsilon: number;
  /** The last dimensions of heads turn. */
  readonly rope: RopeSpec;
  readonly compressor?: CompressorPlan;
  readonly chooser?: {
    readonly q: LinearPlan;
    readonly weights: LinearPlan;
    readonly compressor: CompressorPlan;
    readonly heads: number;
    readonly dim: number;
    readonly top: number;
  };
}

/** Linears that read what attention reads and stay in 16 bits. */
export function compressorReaders({ compressor, chooser }: CompressedPlan): LinearPlan[] {
  const all = [compressor, chooser?.compressor].flatMap((each) => (each ? [each.x, each.gate] : []));
  return [...all, ...(chooser ? [chooser.weights] : [])];
}

/** Resolves what all blocks share; the result resolves one block. Throws LPQ_CONFIG. */
export function compressedPlanner(
  config: Config,
  table: CompressedTable,
  hidden: number,
  norm: NormMaker,
): (parts: BlockParts) => CompressedPlan {
  const heads = config.count(['num_attention_heads']);
  const headDim = config.count(['head_dim']);
  const [rank, outRank] = [config.count(['q_lora_rank']), config.count(['o_lora_rank'])];
  const groups = config.count(['o_groups']);
  if (heads % groups !== 0)
    throw config.error('o_groups', 'does not divide num_attention_heads', groups, `a divisor of ${heads}`);
  const rotary = config.count(['qk_rope_head_dim'], undefined, 2, headDim);
  const { names, types } = table;
  return ({ prefix, index, layers, linear, branch }) => {
    const named = (name: string, n: number, k: number) => linear(prefix + name, n, k, false);
    const type = typeOf(config, types, index, layers);
    const rope = ropeOf(config, type === types.window ? 'main' : 'compress', headDim, rotary);
    const rate = type === types.window ? 0 : rateOf(config, type);
    const compressor = (of: CompressorNames, dim: number): CompressorPlan => {
      const width = (type === types.indexed ? 2 : 1) * dim;
      return {
        x: named(of.x, width, hidden),
        gate: named(of.gate, width, hidden),
        bias: prefix + of.bias,
        norm: norm(prefix + of.norm, dim),
        rate,
        dim,
      };
    };
    const plain = norm(prefix + names.kvNorm, headDim);
    return {
      kind: 'compressed',
      ...branch(names),
      qA: named(names.qA, rank, hidden),
      qNorm: norm(prefix + names.qNorm, rank),
      qB: named(names.qB, heads * headDim, rank),
      kv: named(names.kv, headDim, hidden),
      kvNorm: plain,
      sinks: prefix + names.sinks,
      groups,
      oA: named(names.oA, groups * outRank, (heads / groups) * headDim),
      o: named(names.o, hidden, groups * outRank),
      ...{ heads, kvHeads: 1, headDim, epsilon: plain.epsilon, rope },
      window: config.count(['sliding_window']),
      ...(rate > 0 && { compressor: compressor(names.compressor, headDim) }),
      ...(type === types.indexed && {
        chooser: chooserOf(config, names.indexer, rank, hidden, rotary, named, compressor),
      }),
    };
  };
}

function chooserOf(
  config: Config,
  names: CompressedTable['names']['indexer'],
  rank: number,
  hidden: number,
  rotary: number,
  named: (name: string, n: number, k: number) => LinearPlan,
  compressor: (names: CompressorNames, dim: number) => CompressorPlan,
): NonNullable<CompressedPlan['chooser']> {
  const [heads, dim] = [config.count(['index_n_heads']), config.count(['index_head_dim'], undefined, rotary)];
  return {
    q: named(names.q, heads * dim, rank),
    weights: named(names.weights, heads, hidden),
    compressor: compressor(names.compressor, dim),
    ...{ heads, dim, top: config.count(['index_topk']) },
  };
}

function typeOf(config: Config, types: CompressedTable['types'], index: number, layers: number): string {
  const list = config.list('layer_types', 'string');
  const type = list[index];
  const known: string[] = Object.values(types);
  if (type !== undefined && list.length === layers && known.includes(type)) return type;
  throw config.error(
    'layer_types',
    `does not say what block ${index} is`,
    type ?? `${list.length} entries`,
    `${layers} entries, each ${known.join(' or ')}`,
  );
}

function rateOf(config: Config, type: string): number {
  const rates = config.object('compress_rates');
  if (rates) return rates.count([type], undefined, 2);
  throw config.error('compress_rates', 'is missing', null, 'how many tokens become one, by type of block');
}

function ropeOf(config: Config, kind: 'main' | 'compress', headDim: number, rotary: number): RopeSpec {
  const own = config.object('rope_parameters')?.object(kind) ?? publishedRope(config, kind);
  if (!own) throw config.error('rope_parameters', `has no object '${kind}'`, null, 'objects main and compress');
  const inner = new Config({ ...config.raw, rope_parameters: own.raw }, `'rope_parameters' of '${kind}'`);
  const theta = kind === 'main' ? 10_000 : settingNumber(config, { keys: ['compress_rope_theta'], otherwise: 160_000 });
  const spec = ropeSpec(inner, { style: 'interleaved', theta, partial: true, share: rotary / headDim }, headDim);
  if (spec.rotary === rotary) return spec;
  throw config.error('qk_rope_head_dim', 'is not what partial_rotary_factor says', rotary, spec.rotary);
}

/** The rope of files with one object for all blocks: blocks without entries turn by the plain angles. */
function publishedRope(config: Config, kind: 'main' | 'compress'): Config | undefined {
  const written = config.object('rope_parameters') ?? config.object('rope_scaling');
  if (written?.find('main', 'compress')) return undefined;
  const where = `'rope_parameters' of '${kind}'`;
  const theta = (key: string) => (config.find(key) ? { rope_theta: config.number([key]) } : {});
  if (kind === 'main') return new Config({ rope_type: 'default', ...theta('rope_theta') }, where);
  // YaRN's factor of the angles' cosines is not applied.
  return new Config({ attention_factor: 1, ...written?.raw, ...theta('compress_rope_theta') }, where);
}
