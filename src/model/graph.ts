import { LpqError } from '../core/error.js';
import type { Architecture } from './architecture.js';
import { architectureOf } from './architectures/index.js';
import { attentionStages, attentionTensors } from './attention.js';
import { expertsStages, expertsTensors } from './experts.js';
import { mlpStages, mlpTensors } from './mlp.js';
import { embed, headInput, logits, outerTensors } from './outer.js';
import { type BlockPlan, type ModelPlan, planModel } from './plan.js';
import type { Block, ModelGraph } from './program.js';
import { RopeCache } from './rope-cache.js';
import type { WeightSource } from './source.js';
import { linearRef, storedTurned } from './weights.js';

/**
 * The graph of a checkpoint, with every weight it needs checked to be there in the right shape. Reads no weights.
 * Throws LPQ_ARCH_UNKNOWN, LPQ_CONFIG, LPQ_TENSOR_MISSING, LPQ_TENSOR_SHAPE.
 */
export function openModel(source: WeightSource): ModelGraph {
  const table = withoutBase(architectureOf(source.config, source.dir), source);
  const graph = buildGraph(planModel(table, source.config, source.dir));
  for (const tensors of [graph.outer, ...graph.blocks.map((block) => block.tensors)])
    for (const [name, shape] of tensors) {
      const stored = storedTurned(source, name, graph.transposed) ? [...shape].reverse() : shape;
      checkTensor(source, name, stored, graph.architecture);
    }
  return graph;
}

/** The table with the names that a checkpoint of the base class alone has, where this is one (GPT-2 as published). */
function withoutBase(table: Architecture, source: WeightSource): Architecture {
  const { base, ...names } = table.names;
  if (base === undefined || source.has(`${names.embedding}.weight`)) return table;
  const short = Object.fromEntries(
    Object.entries(names).map(([key, name]) => [key, name.startsWith(base) ? name.slice(base.length) : name]),
  ) as Architecture['names'];
  return source.has(`${short.embedding}.weight`) ? { ...table, names: short } : table;
}

/** The graph of a plan. */
export function buildGraph(plan: ModelPlan): ModelGraph {
  const ropes = new RopeCache();
  const blocks = plan.blocks.map((block, index) => buildBlock(block, index, ropes));
  const linears = blocks.flatMap(({ stages }) => stages.flatMap(({ feeds }) => feeds.flatMap((feed) => feed.linears)));
  return {
    architecture: plan.architecture,
    hidden: plan.hidden,
    vocab: plan.vocab,
    blocks,
    outer: outerTensors(plan),
    transposed: new Set(linears.filter(({ transposed }) => transposed).map(({ name }) => `${name}.weight`)),
    longest: plan.embedding.positions?.count,
    head: { ...linearRef(plan.head), tied: plan.tied },
    embed: (rt, weights, ids, positions) => embed(rt, weights, plan, ids, positions),
    headInput: (rt, weights, h) => headInput(rt, weights, plan, h),
    logits: (rt, weights, h) => logits(rt, weights, plan, h),
  };
}

function buildBlock({ attention, mlp, parallel }: BlockPlan, index: number, ropes: RopeCache): Block {
  const beside = parallel ? { norm: mlp.norm } : undefined;
  return {
    index,
    tensors: new Map([
      ...attentionTensors(attention),
      ...(mlp.kind === 'experts' ? expertsTensors(mlp) : mlpTensors(mlp)),
    ]),
    stages: [
      ...attentionStages(attention, ropes, beside),
      ...(mlp.kind === 'experts' ? expertsStages(mlp) : mlpStages(mlp, parallel)),
    ],
  };
}

/** Weights of the checkpoint that the graph does not use (extra heads, vision towers, stored rotary tables), sorted. */
export function unusedTensors(source: WeightSource, graph: ModelGraph): string[] {
  const used = new Set([graph.outer, ...graph.blocks.map((block) => block.tensors)].flatMap((map) => [...map.keys()]));
  return [...source.names()].filter((name) => !used.has(name)).sort();
}

function checkTensor(source: WeightSource, name: string, shape: readonly number[], architecture: string): void {
  if (!source.has(name))
    throw new LpqError('LPQ_TENSOR_MISSING', `${source.dir} lacks the tensor '${name}' that ${architecture} needs`, {
      expected: `${name} [${shape.join(', ')}]`,
      hint: 'Compare config.json with the weights, and download the checkpoint again if a shard is missing.',
    });
  const got = source.shape(name);
  if (got.length === shape.length && got.every((dim, i) => dim === shape[i])) return;
  throw new LpqError('LPQ_TENSOR_SHAPE', `tensor '${name}' of ${source.dir} has another shape than config.json says`, {
    got: `[${got.join(', ')}]`,
    expected: `[${shape.join(', ')}]`,
    hint: 'config.json and the weights are not of one model.',
  });
}
