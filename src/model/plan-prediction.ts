import type { Architecture } from './architecture.js';
import type { Config } from './config.js';
import type { EmbeddingPlan, LinearPlan, NormMaker, NormPlan } from './plan.js';
import { settingsOf } from './settings.js';
import type { WeightShapes } from './source.js';
import type { PredictionTable } from './tables/prediction.js';

/** What stands before the block of a layer of multi-token prediction. */
export interface PredictionPlan {
  readonly embedding: Pick<EmbeddingPlan, 'weight' | 'width' | 'scale'>;
  readonly vocab: number;
  readonly embeddingNorm: NormPlan;
  readonly hiddenNorm: NormPlan;
  readonly projection: LinearPlan;
  /** Of the states that come in, before hiddenNorm. */
  readonly before: NormPlan | undefined;
}

/** A config with a larger number is damaged. */
const MOST_LAYERS = 64;

/** Module paths have the number that layer `at` of such layers has, in a model of so many blocks. */
export function predictionPath({ numbered }: PredictionTable, name: string, at: number, blocks: number): string {
  return name.replace('{layer}', String(numbered === 'on' ? blocks + at : at));
}

/** The number of such layers in a checkpoint: those that have the weight that the table names, or without weights the number in config.json. */
export function predictionLayers(table: Architecture, source: WeightShapes, blocks: number): number {
  const { prediction } = table;
  if (!prediction) return 0;
  const names = [...source.names()];
  if (names.length === 0)
    return settingsOf(table, source.config, source.dir).count(prediction.count, 0, 0, MOST_LAYERS);
  for (let at = 0; ; at++) {
    const block = predictionPath(prediction, prediction.block, at, blocks);
    const projection = predictionPath(prediction, prediction.names.projection, at, blocks);
    const attends = names.some((name) => name.startsWith(`${block}self_attn.`));
    if (!attends || !source.has(`${projection}.weight`)) return at;
  }
}

/** The path that all of the layer has in common to which a module belongs; undefined of any other module. */
export function predictionRoot({ prediction }: Architecture, module: string, blocks: number): string | undefined {
  if (!prediction) return undefined;
  const [before = '', after] = prediction.root.split('{layer}');
  if (!module.startsWith(before)) return undefined;
  if (after === undefined) return before;
  const index = module.slice(before.length).split('.', 1)[0] as string;
  return /^\d+$/.test(index) && Number(index) >= blocks ? before + index + after : undefined;
}

/** Index of the block with the same attention as the layer that is block `index`. */
export function likeBlock(config: Config, { like }: PredictionTable, index: number): number {
  if (like === undefined) return index;
  const found = like === 'first' ? 0 : config.list('layer_types', 'string').indexOf('sliding_attention');
  return found < 0 ? index : found;
}

/** Resolves layer `at`. */
export function predictionPlan(
  table: PredictionTable,
  at: number,
  model: {
    readonly blocks: number;
    readonly hidden: number;
    readonly vocab: number;
    readonly embedding: EmbeddingPlan;
  },
  norm: NormMaker,
  finalNorm: NormPlan | undefined,
): PredictionPlan {
  const { blocks, hidden, vocab } = model;
  const { weight, width, scale } = model.embedding;
  const path = (name: string, layer = at) => predictionPath(table, name, layer, blocks);
  const { names, normed } = table;
  return {
    embedding: { weight, width, scale },
    vocab,
    embeddingNorm: norm(path(names.embeddingNorm), width),
    hiddenNorm: norm(path(names.hiddenNorm)),
    projection: { name: path(names.projection), n: hidden, k: width + hidden, bias: false },
    before: at === 0 ? finalNorm : normed && names.finalNorm ? norm(path(names.finalNorm, at - 1)) : undefined,
  };
}
