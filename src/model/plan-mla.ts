import type { Config } from './config.js';
import type { BranchPlan, LinearPlan, NormMaker, NormPlan } from './plan.js';
import type { BlockParts } from './plan-attention.js';
import { type IndexerPlan, latentIndexer, type SharedIndexerPlan } from './plan-indexer.js';
import { type RopeSpec, ropeSpec } from './rope.js';
import type { MlaTable } from './tables/mla.js';

/** Multi-head latent attention of one block, in numbers and full names; MlaTable says what it is. */
export interface MlaPlan extends BranchPlan {
  readonly kind: 'mla';
  /** Queries straight from the input, or through a compressed vector. */
  readonly query:
    | { readonly kind: 'direct'; readonly linear: LinearPlan }
    | { readonly kind: 'latent'; readonly a: LinearPlan; readonly norm: NormPlan; readonly b: LinearPlan };
  /** [latent + rotary, hidden]: the compressed vector, then the rotary key of all heads. */
  readonly kvA: LinearPlan;
  readonly kvNorm: NormPlan;
  /** Head by head the rest of the key, then the value. */
  readonly kvB: LinearPlan;
  readonly o: LinearPlan;
  readonly heads: number;
  /** Dimensions: of the compressed vector, and of a head's plain and rotary keys and its value. */
  readonly latent: number;
  readonly plain: number;
  readonly rotary: number;
  readonly value: number;
  /** Multiplies what kvB reads. */
  readonly latentScale: number;
  /** Multiplies q kᵀ. */
  readonly scale: number;
  /** None: nothing is rotated. */
  readonly rope?: RopeSpec;
  readonly indexer?: IndexerPlan | SharedIndexerPlan;
}

/** Resolves what all blocks share; the result resolves one block. Throws LPQ_CONFIG naming the key. */
export function mlaPlanner(
  config: Config,
  table: MlaTable,
  hidden: number,
  norm: NormMaker,
): (parts: BlockParts) => MlaPlan {
  const heads = config.count(['num_attention_heads']);
  // num_key_value_heads is not read: every head has a key of its own, whatever the key says.
  const queryRank = config.find('q_lora_rank') && config.count(['q_lora_rank']);
  const latent = config.count(['kv_lora_rank']);
  const plain = config.count(['qk_nope_head_dim']);
  const rotary = config.count(['qk_rope_head_dim']);
  const value = config.count(['v_head_dim']);
  const rope = table.theta === undefined ? undefined : ropeOf(config, table, table.theta, rotary);
  const bias = config.flag(table.bias);
  // A factor of queries is one of scores.
  const queryScale = table.rankScales && queryRank !== undefined ? Math.sqrt(hidden / queryRank) : 1;
  const latentScale = table.rankScales ? Math.sqrt(hidden / latent) : 1;
  const scale = (queryScale * (table.scaleScores ? yarnScale(config) : 1)) / Math.sqrt(plain + rotary);
  const latentNorm = (name: string, size: number): NormPlan => ({ ...norm(name, size), epsilon: table.epsilon });
  const { names } = table;
  const indexer = rope && table.indexer && latentIndexer(config, table.indexer, { hidden, queryRank, rope }, norm);
  return (parts) => {
    const { prefix, linear: named, branch } = parts;
    const linear = (name: string, n: number, k: number, has = false) => named(prefix + name, n, k, has);
    return {
      kind: 'mla',
      ...branch(names),
      query:
        queryRank === undefined
          ? { kind: 'direct', linear: linear(names.q, heads * (plain + rotary), hidden) }
          : {
              kind: 'latent',
              a: linear(names.qA, queryRank, hidden, bias),
              norm: latentNorm(prefix + names.qNorm, queryRank),
              b: linear(names.qB, heads * (plain + rotary), queryRank),
            },
      kvA: linear(names.kvA, latent + rotary, hidden, bias),
      kvNorm: latentNorm(prefix + names.kvNorm, latent),
      kvB: linear(names.kvB, heads * (plain + value), latent),
      o: linear(names.o, hidden, heads * value, bias),
      heads,
      latent,
      plain,
      rotary,
      value,
      latentScale,
      scale,
      ...(rope && { rope }),
      ...(indexer && { indexer: indexer(parts) }),
    };
  };
}

function ropeOf(config: Config, table: MlaTable, theta: number, rotary: number): RopeSpec {
  const style = config.flag(table.interleaved) ? 'interleaved' : 'half';
  if (rotary % 2 !== 0)
    throw config.error(
      'qk_rope_head_dim',
      'is odd, and rotary positions turn pairs of dimensions',
      rotary,
      'an even number',
    );
  const rope = ropeSpec(config, { style, theta }, rotary);
  if (rope.rotary !== rotary)
    throw config.error('partial_rotary_factor', 'leaves part of qk_rope_head_dim unrotated', rope.rotary, rotary);
  return rope;
}

/** The square of YaRN's term for mscale_all_dim: both of q and k carry it. */
function yarnScale(config: Config): number {
  const parameters = config.object('rope_parameters') ?? config.object('rope_scaling');
  const kind = parameters?.text(['rope_type', 'type'], 'default') ?? 'default';
  const all = parameters?.number(['mscale_all_dim'], 0) ?? 0;
  const factor = parameters?.number(['factor'], 1) ?? 1;
  if (kind === 'default' || all === 0 || factor <= 1) return 1;
  return (0.1 * all * Math.log(factor) + 1) ** 2;
}
