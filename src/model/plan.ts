import type { Architecture } from './architecture.js';
import { type Config, positive, settingNumber } from './config.js';
import { mixerPlanner, type RecurrentPlan } from './mixers/plan.js';
import { type AltUpPlan, altUpPlan, type StreamsPlan, streamsPlan } from './plan-altup.js';
import type { AttentionPlan, BlockParts } from './plan-attention.js';
import {
  attentionOf,
  branchOf,
  mixersOf,
  mlpOf,
  partTables,
  shortcutOf,
  withNorm,
  withNorms,
} from './plan-branches.js';
import type { CompressedPlan } from './plan-compressed.js';
import { type ExpertsPlan, expertsRule } from './plan-experts.js';
import { type HyperPlan, hyperPlan } from './plan-hyper.js';
import type { MlaPlan } from './plan-mla.js';
import { type Activation, activationOf, type MlpPlan } from './plan-mlp.js';
import { type PerLayerEnd, type PerLayerPlan, perLayerEnd, perLayerPlan } from './plan-per-layer.js';
import { likeBlock, type PredictionPlan, predictionPath, predictionPlan } from './plan-prediction.js';
import type { RopeSpec } from './rope.js';
import { settingsOf } from './settings.js';
import type { PredictionTable } from './tables/prediction.js';

export type { AttentionPlan } from './plan-attention.js';
export type { Activation, FusedMlpPlan, GatedMlpPlan, MlpPlan, PlainMlpPlan } from './plan-mlp.js';
export type RopePlan = RopeSpec;

/** A model with every question answered: architecture table + config.json, in numbers and full names. */
export interface ModelPlan {
  readonly architecture: string;
  readonly hidden: number;
  readonly vocab: number;
  readonly embedding: EmbeddingPlan;
  readonly perLayer?: PerLayerPlan;
  readonly streams?: StreamsPlan;
  /** Hyper-connections: how many streams. */
  readonly hyper?: { readonly streams: number };
  readonly finalNorm: NormPlan | undefined;
  /** After the final norm, before the head. */
  readonly projectOut: LinearPlan | undefined;
  readonly head: LinearPlan;
  readonly tied: boolean;
  /** logits = softCap(head * scale), no cap with 0. */
  readonly logits: { readonly scale: number; readonly softCap: number };
  readonly blocks: readonly BlockPlan[];
  /** Layers of multi-token prediction, in the order in which each reads the one before. */
  readonly predictions: readonly BlockPlan[];
}

/** h = project(table[id] * scale) + positions[position + first]. */
export interface EmbeddingPlan {
  /** Full names of tensors. */
  readonly weight: string;
  readonly width: number;
  readonly scale: number;
  readonly project: LinearPlan | undefined;
  readonly positions: { readonly weight: string; readonly first: number; readonly count: number } | undefined;
}

export interface BlockPlan {
  /** What mixes the tokens. */
  readonly attention: AttentionPlan | MlaPlan | RecurrentPlan | CompressedPlan | NothingPlan;
  /** What is added beside attention, of the same norm. */
  readonly beside?: RecurrentPlan;
  readonly mlp: MlpPlan | ExpertsPlan | NothingPlan;
  /** True: the MLP reads the residual stream as it was before attention. */
  readonly parallel: boolean;
  readonly perLayer?: PerLayerEnd;
  readonly altUp?: AltUpPlan;
  readonly hyper?: HyperPlan;
  /** Full name of a tensor [1] that multiplies what the block makes. */
  readonly scalar?: string;
  /** What experts made, added behind another block: 'from' this block's, 'over' it on its way, 'into' the stream behind this one. */
  readonly shortcut?: 'from' | 'over' | 'into';
  /** Of a layer of multi-token prediction. */
  readonly prediction?: PredictionPlan;
}

/**
 * A norm over rows of `size`. weight and bias are full tensor names, undefined where there is none. With turns > 1 they
 * are [turns, size], and row t takes row t mod turns of them.
 */
export interface NormPlan {
  readonly kind: 'rms' | 'layer';
  readonly weight: string | undefined;
  readonly bias: string | undefined;
  readonly size: number;
  readonly turns: number;
  readonly epsilon: number;
  readonly offset: number;
  /** True: each turn has a weight of its own, whose name has the turn for {head}. */
  readonly split?: true;
}

/** The norm of a module path; `size` is the model's unless given, `turns` 1. */
export type NormMaker = (name: string, size?: number, turns?: number) => NormPlan;

/** A linear layer N x K; its tensors are NAME.weight and, with `bias`, NAME.bias. */
export interface LinearPlan {
  readonly name: string;
  readonly n: number;
  readonly k: number;
  readonly bias: boolean;
  /** The checkpoint stores [K, N]. */
  readonly transposed?: true;
}

/** What surrounds attention and MLP: h = residualNorm(h + multiplier * postNorm(branch(norm(h)))). */
export interface BranchPlan {
  readonly norm: NormPlan | undefined;
  readonly postNorm: NormPlan | undefined;
  readonly residualNorm: NormPlan | undefined;
  readonly multiplier: number;
}

/** In the place of the branch that a block has not. */
export interface NothingPlan extends BranchPlan {
  readonly kind: 'nothing';
}

const NOTHING: NothingPlan = {
  kind: 'nothing',
  norm: undefined,
  postNorm: undefined,
  residualNorm: undefined,
  multiplier: 1,
};

/** Far beyond any model: a config that says more is damaged, and must not keep the planner busy for hours. */
const MOST_BLOCKS = 4096;

/** How many blocks the tables say, those that a layer consists of counted each. Throws LPQ_CONFIG. */
export function blockCount(table: Architecture, raw: Readonly<Record<string, unknown>>, dir: string): number {
  return blocksOf(settingsOf(table, raw, dir), table);
}

function blocksOf(config: Config, { parts = 1, sizes }: Architecture): number {
  return parts * config.count(sizes?.layers ?? ['num_hidden_layers'], undefined, 1, MOST_BLOCKS / parts);
}

/**
 * Resolves a table against a config.json; `predictions`: how many layers of multi-token prediction there are. Throws LPQ_CONFIG naming the
 * key.
 */
export function planModel(
  table: Architecture,
  raw: Readonly<Record<string, unknown>>,
  dir: string,
  predictions = 0,
): ModelPlan {
  const config = settingsOf(table, raw, dir);
  const hidden = config.count(table.sizes?.hidden ?? ['hidden_size']);
  const vocab = config.count(['vocab_size']);
  const layers = blocksOf(config, table);
  const norm = normMaker(config, table, hidden);
  const embedding = embeddingPlan(config, table, hidden);
  const perLayer = perLayerPlan(config, table, layers, hidden, norm);
  const streams = streamsPlan(config, table, hidden);
  const blockOf = blockPlanner(config, table, { hidden, layers, perLayer, streams }, norm);
  const blocks = Array.from({ length: layers }, (_, index) => blockOf(index));
  const tied = config.flag(table.tied);
  const normFirst = config.flag(table.residual?.normFirst ?? true);
  const bare = !normFirst || config.flag(table.residual?.withoutFinalNorm ?? false);
  const finalNorm = bare ? undefined : norm(table.names.finalNorm);
  const model = { blocks: layers, hidden, vocab, embedding };
  return {
    architecture: table.modelType,
    hidden,
    vocab,
    embedding,
    ...(perLayer && { perLayer }),
    ...(streams && { streams }),
    ...(blocks[0]?.hyper && { hyper: { streams: blocks[0].hyper.streams } }),
    finalNorm,
    projectOut: projection(table.names.projectOut, embedding.width, hidden),
    head: {
      name: tied ? table.names.embedding : table.names.head,
      n: vocab,
      k: embedding.width,
      bias: config.flag(table.headBias ?? false),
    },
    tied,
    logits: {
      scale: settingNumber(config, table.logits?.multiply ?? 1) / positive(config, table.logits?.divide ?? 1),
      softCap: config.optional(table.logits?.softCap),
    },
    blocks,
    predictions: Array.from({ length: table.prediction ? predictions : 0 }, (_, at) => {
      const own = table.prediction as PredictionTable;
      const prefix = predictionPath(own, own.block, at, layers);
      const block = blockOf(layers + at, { prefix, layer: own.numbered === 'on' ? layers + at : at });
      return { ...block, prediction: predictionPlan(own, at, model, norm, finalNorm) };
    }),
  };
}

/** What a block is resolved with beside the tables. */
interface ModelFacts {
  readonly hidden: number;
  readonly layers: number;
  readonly perLayer: PerLayerPlan | undefined;
  readonly streams: StreamsPlan | undefined;
}

/** Resolves blocks; `predicting`: where that of a layer of multi-token prediction stands, which has attention. */
function blockPlanner(
  config: Config,
  table: Architecture,
  { hidden, layers, perLayer, streams }: ModelFacts,
  norm: NormMaker,
): (index: number, predicting?: { readonly prefix: string; readonly layer: number }) => BlockPlan {
  const parts = partTables(table);
  const activation = activationOf(config, table.mlp);
  const attentions = parts.map((part) => attentionOf(config, part, hidden, norm));
  const recurrent = mixerPlanner(config, table.recurrent, hidden, norm);
  const sparse = table.experts && expertsRule(config, table.experts);
  const parallel = config.flag(table.residual?.parallel ?? false);
  const multiplier = settingNumber(config, table.residual?.multiplier ?? 1);
  const mlpTable = parallel && table.residual?.sharedNorm ? withNorm(table.mlp, table.attention.names.norm) : table.mlp;
  const normFirst = config.flag(table.residual?.normFirst ?? true);
  const linear: BlockParts['linear'] = (name, n, k, bias) => ({
    name,
    n,
    k,
    bias,
    ...(table.transposed && { transposed: true }),
  });
  return (index, predicting) => {
    const part = index % parts.length;
    const own = parts[part] as Architecture;
    const layer = predicting?.layer ?? (index - part) / parts.length;
    const prefix = predicting?.prefix ?? table.names.block.replace('{layer}', String(layer));
    const branch: BlockParts['branch'] = (names) => ({
      norm: names.norm !== undefined && normFirst ? norm(prefix + names.norm) : undefined,
      postNorm: names.postNorm === undefined ? undefined : norm(prefix + names.postNorm),
      residualNorm: names.norm !== undefined && !normFirst ? norm(prefix + names.norm) : undefined,
      multiplier,
    });
    const block = {
      prefix,
      index: predicting ? likeBlock(config, table.prediction as PredictionTable, index) : index,
      ...{ layers, linear, branch },
    };
    const mixer = predicting ? undefined : recurrent(block);
    const only = table.single && branchOf(config, table.single, mixer, index, layers);
    // Layers of multi-token prediction are as the last block is.
    const sparseHere = !(predicting && table.prediction?.dense) && sparse?.(Math.min(layer, layers / parts.length - 1));
    const dense = only ? only !== 'experts' : sparseHere !== true;
    const facts = { table, own, hidden, norm, multiplier, activation, sparse: !dense, layer };
    const mlp = mlpOf(
      config,
      facts,
      withNorms(
        predicting && table.prediction?.mlpNorm !== undefined
          ? withNorm(mlpTable, table.prediction.mlpNorm)
          : parts.length > 1
            ? own.mlp
            : mlpTable,
        mixer && table.recurrent?.mlp,
      ),
      block,
    );
    const altUp = altUpPlan(config, table, streams, { prefix, hidden, last: index === layers - 1 }, norm);
    const hyper = hyperPlan(config, table.hyper, norm('').epsilon, { prefix, hidden, last: index === layers - 1 });
    const end = perLayerEnd(table, perLayer, { prefix, index, hidden }, norm, activation as Activation);
    return {
      ...mixersOf(config, table, mixer, only && only !== 'attention' ? NOTHING : attentions[part]!(block)),
      mlp: only === 'attention' ? NOTHING : mlp,
      parallel,
      ...(end && { perLayer: end }),
      ...(altUp && { altUp }),
      ...(hyper && { hyper }),
      ...(table.blockScale !== undefined && { scalar: prefix + table.blockScale }),
      ...(parts.length > 1 && sparse?.(layer) && { shortcut: shortcutOf(part, parts.length) }),
    };
  };
}

function normMaker(config: Config, { norm }: Architecture, hidden: number): NormMaker {
  const epsilon = settingNumber(config, norm.epsilon);
  const affine = config.flag(norm.affine ?? true);
  const bias = affine && norm.kind === 'layer' && config.flag(norm.bias ?? true);
  return (name, size = hidden, turns = 1) => ({
    kind: norm.kind,
    weight: affine ? `${name}.weight` : undefined,
    bias: bias ? `${name}.bias` : undefined,
    size,
    turns,
    epsilon,
    offset: norm.offset ?? 0,
  });
}

function embeddingPlan(config: Config, table: Architecture, hidden: number): EmbeddingPlan {
  const { names, embedding } = table;
  const width = embedding?.width ? config.count(embedding.width, hidden) : hidden;
  const scale = embedding?.scale ?? 1;
  const first = embedding?.firstPosition ?? 0;
  return {
    weight: `${names.embedding}.weight`,
    width,
    scale: scale === 'root-hidden' ? Math.sqrt(hidden) : settingNumber(config, scale),
    project: projection(names.projectIn, hidden, width),
    positions:
      names.positions === undefined
        ? undefined
        : {
            weight: `${names.positions}.weight`,
            first,
            count: config.count(table.sizes?.positions ?? ['max_position_embeddings']),
          },
  };
}

/** A linear without bias between widths that differ; undefined where they do not. */
function projection(name: string | undefined, n: number, k: number): LinearPlan | undefined {
  return name === undefined || n === k ? undefined : { name, n, k, bias: false };
}
