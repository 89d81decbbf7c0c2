import type { Tensor } from '../../../native/binding.js';
import type { TokenBatch } from '../../model/batch.js';
import { disposeStates, runForward } from '../../model/forward.js';
import type { BlockWeights } from '../../model/program.js';
import type { ModelTask } from '../../quantize/model-task.js';
import { sizesOf } from './sizes.js';

/** Of a batch of so many tokens. */
export function heldBytes({ graph, plan }: Pick<ModelTask, 'graph' | 'plan'>, tokens: number): number {
  return 4 * tokens * (graph.stream + plan.head.k);
}

/** How many batches of so many tokens go through the unquantized model at once. */
export function batchesAtOnce(task: Pick<ModelTask, 'rt' | 'graph' | 'plan'>, tokens: number): number {
  return Math.max(1, Math.floor(sizesOf(task.rt).atOnce / heldBytes(task, tokens)));
}

/** What the unquantized model's head reads of batches, f32 [T,K] each. The caller disposes of them. */
export async function teach(
  { rt, graph, source }: ModelTask,
  outer: BlockWeights,
  batches: readonly TokenBatch[],
): Promise<Tensor[]> {
  const own = { ...graph, blocks: graph.blocks.filter(({ predicts }) => !predicts) };
  const states = await runForward(rt, source, own, outer, batches);
  try {
    const read = states.map(({ h }) => graph.headInput(rt, outer, h));
    await rt.sync();
    return read;
  } finally {
    disposeStates(states);
  }
}

/**
 * What the unquantized model's head reads of batches in the order of steps. Some batches are taken through that model at once; as many as
 * sizesOf() has room for stay, for the steps that see them again.
 */
export class Teacher {
  private readonly held = new Map<TokenBatch, Tensor>();
  private readonly passing = new Map<TokenBatch, Tensor>();
  private readonly room: number;
  private readonly atOnce: number;

  /** `tokens`: of a batch, at most. */
  constructor(
    private readonly task: ModelTask,
    private readonly outer: BlockWeights,
    private readonly order: readonly TokenBatch[],
    tokens: number,
  ) {
    const { held } = sizesOf(task.rt);
    this.room = Math.floor(held / (4 * tokens * task.plan.head.k));
    this.atOnce = batchesAtOnce(task, tokens);
  }

  /** Of the batch of a step, f32 [T,K]; the teacher's, until the next call. Steps come in order, from any one on. */
  async target(step: number): Promise<Tensor> {
    const batch = this.order[step] as TokenBatch;
    if (!this.held.has(batch) && !this.passing.has(batch)) await this.teach(step);
    return (this.held.get(batch) ?? this.passing.get(batch)) as Tensor;
  }

  private async teach(step: number): Promise<void> {
    this.forget();
    const next = new Set(this.order.slice(step, step + this.atOnce).filter((batch) => !this.held.has(batch)));
    for (const [i, tensor] of (await teach(this.task, this.outer, [...next])).entries()) {
      const to = this.held.size < this.room ? this.held : this.passing;
      to.set([...next][i] as TokenBatch, tensor);
    }
  }

  private forget(): void {
    for (const tensor of this.passing.values()) tensor.dispose();
    this.passing.clear();
  }

  dispose(): void {
    this.forget();
    for (const tensor of this.held.values()) tensor.dispose();
  }
}
