import { LpqError } from '../core/error.js';
import { alternating, altUpTensors } from './altup.js';
import { architectureOf } from './architectures/index.js';
import { attentionStages, attentionTensors, type Beside } from './attention.js';
import { ended, endTensors } from './block-end.js';
import { compressedStages, compressedTensors } from './compressed.js';
import { expertsStages, expertsTensors } from './experts.js';
import { expertSource } from './fused-experts.js';
import { hyperStages, hyperTensors } from './hyper.js';
import { besideStages } from './mixers/beside.js';
import { recurrentStages, recurrentTensors } from './mixers/stages.js';
import { mlaStages, mlaTensors } from './mla.js';
import { mlpStages, mlpTensors } from './mlp.js';
import { asNamed } from './named.js';
import { carried, embed, headInput, logits, outerTensors, streamWidth } from './outer.js';
import { type BlockPlan, blockCount, type ModelPlan, planModel } from './plan.js';
import { predictionLayers } from './plan-prediction.js';
import { predictionStages, predictionTensors } from './prediction.js';
import type { Block, ModelGraph, Stage } from './program.js';
import { RopeCache } from './rope-cache.js';
import { shortcutStages } from './shortcut.js';
import type { WeightShapes, WeightSource } from './source.js';
import { linearRef, storedTurned } from './weights.js';

/**
 * The graph of a checkpoint, with every weight it needs checked to be there in the right shape. Reads no weights.
 * Throws LPQ_ARCH_UNKNOWN, LPQ_CONFIG, LPQ_TENSOR_MISSING, LPQ_TENSOR_SHAPE.
 */
export function openModel(source: WeightShapes): ModelGraph {
  const graph = buildGraph(planSource(source));
  checkTensors(source, graph);
  return graph;
}

/**
 * The same with layers of multi-token prediction as blocks behind the model's, where `mtp` asks for them: what is calibrated and
 * quantized. Throws LPQ_USAGE where the checkpoint has none that lpq knows.
 */
export function openBlocks(source: WeightShapes, mtp = false): ModelGraph {
  if (!mtp) return openModel(source);
  const plan = planSource(source);
  requirePredictions(plan, source.dir);
  const graph = buildGraph({ ...plan, blocks: [...plan.blocks, ...plan.predictions] });
  checkTensors(source, graph);
  return graph;
}

/** Throws LPQ_USAGE for a model without layers of multi-token prediction. */
function requirePredictions({ predictions, architecture }: ModelPlan, dir: string): void {
  if (predictions.length > 0) return;
  throw new LpqError('LPQ_USAGE', `--mtp has no effect on ${dir}, which has no layers of multi-token prediction`, {
    got: `${architecture}, and no tensors of such layers that lpq knows`,
    expected: 'layers under their published names, as docs/architectures.md lists them',
    hint: 'Leave --mtp out: tensors that the architecture does not use pass through unchanged.',
  });
}

function checkTensors(source: WeightShapes, graph: ModelGraph): void {
  // Nothing but shapes is read of it.
  const view: WeightShapes = expertSource(source as WeightSource);
  for (const tensors of [graph.outer, ...graph.blocks.map((block) => block.tensors)])
    for (const [name, shape] of tensors) {
      const stored = storedTurned(view, name, graph.transposed) ? [...shape].reverse() : shape;
      checkTensor(view, name, stored, graph.architecture);
    }
}

/** The plan of a checkpoint, or of some blocks of it, by its own names. Throws LPQ_ARCH_UNKNOWN, LPQ_CONFIG. */
export function planSource(source: WeightShapes): ModelPlan {
  const { config, dir, part } = source;
  const table = asNamed(architectureOf(config, dir), source);
  const layers = table.prediction ? predictionLayers(table, source, blockCount(table, config, dir)) : 0;
  const plan = planModel(table, config, dir, layers);
  if (!part) return plan;
  return { ...plan, blocks: part.flatMap((index) => plan.blocks[index] ?? []), predictions: [] };
}

/** The graph of a plan. */
export function buildGraph(plan: ModelPlan): ModelGraph {
  const ropes = new RopeCache();
  const blocks = plan.blocks.map((block, index) => buildBlock(block, index, ropes));
  const linears = blocks.flatMap(({ stages }) => stages.flatMap(({ feeds }) => feeds.flatMap((feed) => feed.linears)));
  return {
    architecture: plan.architecture,
    hidden: plan.hidden,
    stream: streamWidth(plan),
    vocab: plan.vocab,
    blocks,
    outer: outerTensors(plan),
    transposed: new Set(linears.filter(({ transposed }) => transposed).map(({ name }) => `${name}.weight`)),
    longest: plan.embedding.positions?.count,
    head: { ...linearRef(plan.head), tied: plan.tied },
    embed: (rt, weights, ids, positions) => embed(rt, weights, plan, ids, positions),
    carried: (rt, weights, ids, h) => carried(rt, weights, plan, ids, h),
    headInput: (rt, weights, h) => headInput(rt, weights, plan, h),
    logits: (rt, weights, h, pending) => logits(rt, weights, plan, h, pending),
  };
}

function mixerTensors(plan: BlockPlan['attention']): [string, readonly number[]][] {
  if (plan.kind === 'nothing') return [];
  if (plan.kind === 'recurrent') return recurrentTensors(plan);
  if (plan.kind === 'compressed') return compressedTensors(plan);
  return plan.kind === 'mla' ? mlaTensors(plan) : attentionTensors(plan);
}

function mixerStages(
  { attention: plan, beside: also }: BlockPlan,
  ropes: RopeCache,
  beside: Beside | undefined,
): Stage[] {
  if (also && plan.kind === 'attention') return besideStages(plan, also, ropes);
  if (plan.kind === 'nothing') return [];
  if (plan.kind === 'recurrent') return recurrentStages(plan);
  if (plan.kind === 'compressed') return compressedStages(plan, ropes);
  return plan.kind === 'mla' ? mlaStages(plan, ropes) : attentionStages(plan, ropes, beside);
}

function mlpTensorsOf(plan: BlockPlan['mlp']): [string, readonly number[]][] {
  if (plan.kind === 'nothing') return [];
  return plan.kind === 'experts' ? expertsTensors(plan) : mlpTensors(plan);
}

function mlpStagesOf(plan: BlockPlan['mlp'], parallel: boolean, shortcut: BlockPlan['shortcut']): Stage[] {
  if (plan.kind === 'nothing') return [];
  return plan.kind === 'experts' ? expertsStages(plan, shortcut === 'from') : mlpStages(plan, parallel);
}

function buildBlock(plan: BlockPlan, index: number, ropes: RopeCache): Block {
  const { attention, mlp, parallel, shortcut, prediction } = plan;
  const beside = parallel ? { norm: mlp.norm } : undefined;
  const own = shortcutStages([...mixerStages(plan, ropes, beside), ...mlpStagesOf(mlp, parallel, shortcut)], shortcut);
  const stages = prediction ? predictionStages(own, prediction) : own;
  return {
    index,
    ...(prediction && { predicts: true as const }),
    tensors: new Map([
      ...mixerTensors(attention),
      ...(plan.beside ? mixerTensors(plan.beside) : []),
      ...mlpTensorsOf(mlp),
      ...(plan.altUp ? altUpTensors(plan) : endTensors(plan)),
      ...(plan.hyper ? hyperTensors(plan.hyper) : []),
      ...(prediction ? predictionTensors(prediction) : []),
    ]),
    stages: plan.altUp
      ? alternating(stages, plan, plan.altUp)
      : plan.hyper
        ? hyperStages(stages, plan.hyper)
        : [...stages.slice(0, -1), ended(stages.at(-1) as Stage, plan)],
  };
}

/** Weights of the checkpoint that the graph does not use (extra heads, vision towers, stored rotary tables), sorted. */
export function unusedTensors(source: WeightSource, graph: ModelGraph): string[] {
  const used = new Set([graph.outer, ...graph.blocks.map((block) => block.tensors)].flatMap((map) => [...map.keys()]));
  return [...expertSource(source).names()].filter((name) => !used.has(name)).sort();
}

function checkTensor(source: WeightShapes, name: string, shape: readonly number[], architecture: string): void {
  if (!source.has(name))
    throw new LpqError('LPQ_TENSOR_MISSING', `${source.dir} lacks the tensor '${name}' that ${architecture} needs`, {
      expected: `${name} [${shape.join(', ')}]`,
      hint: 'Compare config.json with the weights, and download the checkpoint again if a shard is missing.',
    });
  const got = source.shape(name);
  if (got.length === shape.length && got.every((dim, i) => dim === shape[i])) return;
  throw new LpqError(
    'LPQ_TENSOR_SHAPE',
    `tensor '${name}' of ${source.dir} does not have the shape that config.json says`,
    {
      got: `[${got.join(', ')}]`,
      expected: `[${shape.join(', ')}]`,
      hint: 'config.json and the weights belong to different models.',
    },
  );
}

/** Names of the tensors of each block, those of multi-token prediction last, by config.json alone. Throws what planSource throws. */
export function blockTensors(source: WeightShapes): string[][] {
  const plan = planSource(source);
  const { blocks } = buildGraph({ ...plan, blocks: [...plan.blocks, ...plan.predictions] });
  return blocks.map(({ tensors }) => [...tensors.keys()]);
}
