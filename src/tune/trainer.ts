import { type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { Random } from '../calibrate/random.js';
import { disposeState } from '../calibrate/streams.js';
import type { BlockWeights } from '../model/program.js';
import { RopeCache } from '../model/rope-cache.js';
import type { BlockLane, BlockTask } from '../quantize/block-task.js';
import { passBlock } from './block.js';
import { trainingRuntime } from './runtime.js';
import type { WeightGradient } from './tape.js';

/** The share of the batches that only chooses the step. */
const HELD_OUT = 1 / 8;

/** Passes of a block on its calibration batches: gradients of the mean squared error of its output, and that error itself. */
export class Trainer {
  /** Batches that steps are on, from 0, and those that are held out, behind them. With one batch, that is all there is to judge by. */
  readonly batches: number;
  readonly judges: readonly number[];
  private readonly rt: NativeRuntime;
  private readonly lane: BlockLane;
  private readonly ropes = new RopeCache();

  /** `weights`: the block's, those in training among them; `gradients`: f32 [N,K] of those, by linear. */
  constructor(
    readonly task: BlockTask,
    private readonly weights: BlockWeights,
    private readonly gradients: ReadonlyMap<string, Tensor>,
  ) {
    this.lane = task.lanes[0] as BlockLane;
    this.rt = trainingRuntime(this.lane.rt);
    const { count } = this.lane.inputs;
    const held = count === 1 ? 0 : Math.max(1, Math.round(count * HELD_OUT));
    this.batches = count - held;
    this.judges = Array.from({ length: Math.max(1, held) }, (_, i) => count - 1 - i);
  }

  /** Adds a batch's part to the gradients; enqueued, not waited for. */
  async gradient(batch: number): Promise<void> {
    await this.pass(batch, this.gradients, 'back');
  }

  /** Settles when the device has come so far. */
  async mark(): Promise<void> {
    await this.rt.mark();
  }

  /** What linears read of a batch: x f32 [T,K] by linear. */
  async read(batch: number, see: ReadonlyMap<string, (x: Tensor) => void>): Promise<void> {
    await this.pass(batch, new Map([...see].map(([name, reads]) => [name, { reads }])), 'forth');
  }

  /** The mean squared error of the output on the batches held out. */
  async loss(): Promise<number> {
    let [sum, elements] = [0, 0];
    for (const batch of this.judges) {
      const part = await this.pass(batch, new Map(), 'loss');
      sum += part.sum;
      elements += part.elements;
    }
    return sum / elements;
  }

  /** Batches to step on: all in an order that depends on the seed and the block alone, then all again in another. */
  *order(seed: number): Generator<number, never> {
    const random = new Random(seed + this.task.block.index);
    for (;;) yield* [...random.shuffled(this.batches)].reverse();
  }

  /** Forth alone, or also back, or with the error, which is waited for. */
  private async pass(
    batch: number,
    gradients: ReadonlyMap<string, WeightGradient>,
    what: 'forth' | 'back' | 'loss',
  ): Promise<{ sum: number; elements: number }> {
    const { rt, lane, task } = this;
    const [input, target] = [lane.inputs.state(batch), lane.outputs.state(batch)];
    const made = await passBlock(rt, task.plan, this.weights, this.ropes, input, gradients);
    const [tokens, width] = target.h.shape as [number, number];
    const dy = rt.allocate('f32', [tokens, width]);
    const sums = rt.allocate('f64', [tokens]);
    try {
      if (what !== 'forth') ops.outputError(rt, made.output, target.h, dy, sums);
      if (what === 'back') made.backward(dy);
      const rows = what === 'loss' ? await readTyped<Float64Array>(rt, sums) : [];
      return { sum: [...rows].reduce((a, b) => a + b, 0), elements: tokens * width };
    } finally {
      made.dispose();
      for (const tensor of [dy, sums]) tensor.dispose();
      for (const state of [input, target]) disposeState(state);
    }
  }
}
