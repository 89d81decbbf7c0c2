import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { LpqError } from '../core/error.js';
import { architectureOf } from './architectures/index.js';
import { attentionStages, attentionTensors } from './attention.js';
import { expertsStages, expertsTensors } from './experts.js';
import { expertSource } from './fused-experts.js';
import { mlaStages, mlaTensors } from './mla.js';
import { gatedStages, gatedTensors } from './mlp.js';
import { type BlockPlan, type ModelPlan, planModel } from './plan.js';
import type { Block, BlockWeights, ModelGraph } from './program.js';
import { RopeCache } from './rope-cache.js';
import type { WeightSource } from './source.js';
import { applyLinear, applyNorm, linearRef, linearTensors, normTensors, weightOf } from './weights.js';

/**
 * The graph of a checkpoint, with every weight it needs checked to be there in the right shape. Reads no weights.
 * Throws LPQ_ARCH_UNKNOWN, LPQ_CONFIG, LPQ_TENSOR_MISSING, LPQ_TENSOR_SHAPE.
 */
export function openModel(source: WeightSource): ModelGraph {
  const table = architectureOf(source.config, source.dir);
  const graph = buildGraph(planModel(table, source.config, source.dir));
  const view = expertSource(source);
  for (const tensors of [graph.outer, ...graph.blocks.map((block) => block.tensors)])
    for (const [name, shape] of tensors) checkTensor(view, name, shape, graph.architecture);
  return graph;
}

/** The graph of a plan. */
export function buildGraph(plan: ModelPlan): ModelGraph {
  const ropes = new RopeCache();
  return {
    architecture: plan.architecture,
    hidden: plan.hidden,
    vocab: plan.vocab,
    blocks: plan.blocks.map((block, index) => buildBlock(block, index, ropes)),
    outer: new Map<string, readonly number[]>([
      [plan.embedding, [plan.vocab, plan.hidden]],
      ...normTensors(plan.finalNorm),
      ...linearTensors(plan.head),
    ]),
    head: { ...linearRef(plan.head), tied: plan.tied },
    embed(rt, weights, ids) {
      const h = rt.allocate('f32', [ids.shape[0] as number, plan.hidden]);
      ops.embedding(rt, ids, weightOf(weights, plan.embedding), h);
      return h;
    },
    headInput: (rt, weights, h) => applyNorm(rt, weights, plan.finalNorm, h),
    logits(rt: NativeRuntime, weights: BlockWeights, h: Tensor) {
      const x = applyNorm(rt, weights, plan.finalNorm, h);
      const y = applyLinear(rt, weights, plan.head, x);
      x.dispose();
      return y;
    },
  };
}

function buildBlock(plan: BlockPlan, index: number, ropes: RopeCache): Block {
  const { attention, mlp } = plan;
  return {
    index,
    tensors: new Map([
      ...(attention.kind === 'mla' ? mlaTensors(attention) : attentionTensors(attention)),
      ...(mlp.kind === 'gated' ? gatedTensors(mlp) : expertsTensors(mlp)),
    ]),
    stages: [
      ...(attention.kind === 'mla' ? mlaStages(attention, ropes) : attentionStages(attention, ropes)),
      ...(mlp.kind === 'gated' ? gatedStages(mlp) : expertsStages(mlp)),
    ],
  };
}

/** Weights of the checkpoint that the graph does not use (extra heads, vision towers, stored rotary tables), sorted. */
export function unusedTensors(source: WeightSource, graph: ModelGraph): string[] {
  const used = new Set([graph.outer, ...graph.blocks.map((block) => block.tensors)].flatMap((map) => [...map.keys()]));
  return [...expertSource(source).names()].filter((name) => !used.has(name)).sort();
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
