import type { NativeRuntime, Tensor } from '../../../native/binding.js';
import { copyState, disposeState } from '../../calibrate/streams.js';
import type { TokenBatch } from '../../model/batch.js';
import { embedBatches, runBlock } from '../../model/forward.js';
import type { BlockPlan } from '../../model/plan.js';
import type { Block, BlockState, BlockWeights } from '../../model/program.js';
import { RopeCache } from '../../model/rope-cache.js';
import { disposeWeights, loadWeights } from '../../model/weights.js';
import type { ModelTask } from '../../quantize/model-task.js';
import { dequantizeResult } from '../../quantize/stored.js';
import { type Pass, passBlock } from '../block.js';
import type { WeightGradient } from '../tape.js';
import { type Head, headLoss } from './head.js';
import { keptBlocks } from './kept.js';
import { sizesOf } from './sizes.js';
import { normSinks, type TrainedNorm } from './trained-norms.js';
import type { TrainedScales } from './trained-scales.js';

interface Held {
  readonly pass: Pass;
  readonly weights: BlockWeights;
}

function release({ pass, weights }: Held): void {
  pass.dispose();
  disposeWeights(weights);
}

/**
 * The quantized model with scales, and norms, in training. A batch goes through it block by block, and back: what blocks are given is kept.
 * The passes of the last blocks are kept, too, as far as there is room (kept.ts). Others are computed again on the way back, so that the
 * weights and the activations of one block are held at a time.
 */
export class Student {
  private readonly rt: NativeRuntime;
  private readonly ropes = new RopeCache();
  private readonly blocks: readonly Block[];

  /** `outer`: the unquantized model's weights outside of blocks, the caller's. */
  constructor(
    private readonly task: ModelTask,
    private readonly scales: ReadonlyMap<string, TrainedScales>,
    private readonly outer: BlockWeights,
    private readonly norms: ReadonlyMap<string, TrainedNorm> = new Map(),
  ) {
    this.rt = task.rt;
    // The head does not read what layers of multi-token prediction make.
    this.blocks = task.graph.blocks.filter(({ predicts }) => !predicts);
  }

  /** KL to the unquantized model, summed over the batch; `target`: what that model's head reads of it. */
  async loss(batch: TokenBatch, target: Tensor): Promise<number> {
    const { rt } = this;
    let [state] = embedBatches(rt, this.task.graph, this.outer, [batch]) as [BlockState];
    try {
      for (const block of this.blocks) state = await this.through(block, state);
      return (await this.atHead(state, target, false)).sum;
    } finally {
      disposeState(state);
    }
  }

  /** The same; adds to the gradients of the scales, of the mean over tokens. */
  async gradient(batch: TokenBatch, target: Tensor): Promise<number> {
    const { rt, task, blocks } = this;
    const entered: BlockState[] = embedBatches(rt, task.graph, this.outer, [batch]);
    const passes = new Map<Block, Held>();
    const keep = keptBlocks(blocks, task.plan, batch.tokens, sizesOf(rt).kept).blocks;
    const kept = new Map<string, Tensor>();
    let dy: Tensor | undefined;
    try {
      for (const [i, block] of blocks.entries()) {
        const state = entered.at(-1) as BlockState;
        if (keep.has(block) && state.carried === undefined) {
          const held = await this.pass(block, state, i > 0);
          passes.set(block, held);
          const { output } = held.pass;
          entered.push({ batch, h: output.view(output.shape), aux: {} });
        } else entered.push(await this.through(block, copyState(rt, state)));
      }
      const last = entered.pop() as BlockState;
      let sum: number;
      try {
        ({ sum, gradient: dy } = await this.atHead(last, target, true));
      } finally {
        disposeState(last);
      }
      for (const block of blocks.toReversed()) {
        const state = entered.pop() as BlockState;
        try {
          const held = passes.get(block) ?? (await this.pass(block, state, entered.length > 0));
          passes.set(block, held);
          const before = held.pass.backward(dy as Tensor, kept);
          await rt.sync();
          dy?.dispose();
          dy = before;
          release(held);
          passes.delete(block);
        } finally {
          disposeState(state);
        }
      }
      return sum;
    } finally {
      dy?.dispose();
      for (const held of passes.values()) release(held);
      for (const tensor of kept.values()) tensor.dispose();
      for (const state of entered) disposeState(state);
    }
  }

  private async through(block: Block, state: BlockState): Promise<BlockState> {
    const weights = await this.weightsOf(block);
    try {
      const next = await runBlock(this.rt, block, weights, state);
      await this.rt.sync();
      return next;
    } finally {
      disposeWeights(weights);
    }
  }

  /** `through`: whether the gradient with respect to the state is wanted. */
  private async pass(block: Block, state: BlockState, through: boolean): Promise<Held> {
    const { rt, task } = this;
    const weights = await this.weightsOf(block);
    try {
      const plan = task.plan.blocks[block.index] as BlockPlan;
      const pass = await passBlock(rt, plan, weights, this.ropes, state, this.sinks(weights), undefined, through);
      await rt.sync();
      return { pass, weights };
    } catch (error) {
      disposeWeights(weights);
      throw error;
    }
  }

  private async atHead(
    { h }: BlockState,
    target: Tensor,
    gradient: boolean,
  ): Promise<{ readonly sum: number; readonly gradient: Tensor | undefined }> {
    const { rt, task, outer } = this;
    const { name } = task.plan.head;
    const { weight: final } = task.plan.finalNorm ?? {};
    const weight = this.weightOf(name);
    const norm = final === undefined ? undefined : await this.norms.get(final)?.weight();
    const weights: BlockWeights = new Map(outer);
    if (task.forms) weights.activations = new Map(task.forms);
    if (weight) weights.set(`${name}.weight`, weight);
    if (norm) weights.set(final as string, norm);
    const sinks = this.sinks(weights);
    const head: Head = { plan: task.plan, weights, source: outer, gradient: sinks.get(name), norms: sinks };
    try {
      return await headLoss(rt, head, h, target, gradient);
    } finally {
      for (const tensor of [weight, norm]) tensor?.dispose();
    }
  }

  /** The weights of a block; those that are quantized as they are stored. */
  private async weightsOf({ tensors }: Block): Promise<BlockWeights> {
    const { rt, task } = this;
    const names = [...tensors.keys()];
    const stored = new Map(names.map((name) => [name, name.replace(/\.weight$/, '')]));
    const plain = names.filter((name) => !task.modules.has(stored.get(name) as string));
    const weights = await loadWeights(rt, task.source, plain, task.graph.transposed);
    for (const [name, module] of stored) {
      const weight = this.weightOf(module);
      if (weight) weights.set(name, weight);
      const norm = await this.norms.get(name)?.weight();
      weights.get(norm ? name : '')?.dispose();
      if (norm) weights.set(name, norm);
    }
    if (task.forms) weights.activations = new Map(task.forms);
    return weights;
  }

  private weightOf(name: string): Tensor | undefined {
    const module = this.task.modules.get(name);
    return this.scales.get(name)?.weight() ?? (module && dequantizeResult(this.rt, module));
  }

  private sinks(weights: BlockWeights): Map<string, WeightGradient> {
    const scales = [...this.scales].flatMap(([name, scale]) => {
      const weight = weights.get(`${name}.weight`);
      return weight ? [[name, (x: Tensor, dy: Tensor) => scale.add(weight, x, dy)] as const] : [];
    });
    return new Map<string, WeightGradient>([...scales, ...normSinks(this.norms)]);
  }
}
