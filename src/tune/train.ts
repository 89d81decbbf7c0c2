import { type NativeRuntime, readTyped, type Tensor } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { Random } from '../calibrate/random.js';
import { disposeState } from '../calibrate/streams.js';
import { tell } from '../core/activity.js';
import type { BlockWeights } from '../model/program.js';
import { RopeCache } from '../model/rope-cache.js';
import type { BlockLane, BlockTask } from '../quantize/block-task.js';
import { passBlock } from './block.js';
import type { Latent } from './latent.js';
import { LOOKS, STARTS, type Start, type TuneOptions } from './options.js';

/** What training a block came to: mean squared errors of its output on the batches held out. */
export interface Training {
  readonly steps: number;
  readonly start: Start;
  /** The step that was kept; 0: what the method before made. */
  readonly kept: number;
  readonly curve: readonly Look[];
}

interface Look {
  readonly step: number;
  readonly loss: number;
}

/** The share of the batches that only chooses the step. */
const HELD_OUT = 1 / 8;

/**
 * Signed gradient descent (SignRound, arXiv:2309.05516, algorithm 1) on the mean squared error of a block's output, a batch a step, with
 * rates of 1/steps that fall to 0. What is best on batches held out is kept, the codes of the method before included, so that steps never
 * hurt there. The same bytes for any number of threads. `weights`: the block's, those of latents among them.
 */
export async function train(
  task: BlockTask,
  weights: BlockWeights,
  latents: ReadonlyMap<string, Latent>,
  options: TuneOptions,
): Promise<Training> {
  const lane = task.lanes[0] as BlockLane;
  const trainer = new Trainer(task, lane, weights, latents);
  const { count } = lane.inputs;
  const held = count === 1 ? 0 : Math.max(1, Math.round(count * HELD_OUT));
  // With one batch, that is all there is to judge by.
  const judges = Array.from({ length: Math.max(1, held) }, (_, i) => count - 1 - i);
  const descent = new Descent(trainer, latents, options, count - held, judges);
  const before = { step: 0, loss: await trainer.loss(judges) };
  let start = options.start === 'best' ? undefined : options.start;
  if (start === undefined) {
    const tries = Math.max(1, Math.round(options.steps * options.trial));
    let least = Number.POSITIVE_INFINITY;
    for (const each of STARTS) {
      await descent.begin(each, tries, 'trying a start of block');
      const loss = await trainer.loss(judges);
      if (loss >= least) continue;
      [least, start] = [loss, each];
    }
  }
  const curve: Look[] = [before];
  let best = before;
  await descent.begin(start as Start, options.steps, 'tuning block', (look) => {
    curve.push(look);
    if (look.loss >= best.loss) return;
    best = look;
    for (const latent of latents.values()) latent.keep();
  });
  return { steps: options.steps, start: start as Start, kept: best.step, curve };
}

/** Steps from a start, with the batches that are not held out in an order that depends on the seed and the block alone. */
class Descent {
  constructor(
    private readonly trainer: Trainer,
    private readonly latents: ReadonlyMap<string, Latent>,
    private readonly options: TuneOptions,
    private readonly batches: number,
    private readonly judges: readonly number[],
  ) {}

  async begin(start: Start, steps: number, what: string, onLook?: (look: Look) => void): Promise<void> {
    const { trainer, options, batches, judges } = this;
    const { task } = trainer;
    const latents = [...this.latents.values()];
    for (const latent of latents) latent.restart(start);
    const random = new Random(options.seed + task.block.index);
    let order: number[] = [];
    for (let step = 0; step < steps; step++) {
      task.check('tune');
      tell(`${what} ${task.block.index + 1}, step`, step, steps);
      if (order.length === 0) order = [...random.shuffled(batches)];
      await trainer.gradient(order.pop() as number);
      const share = 1 - step / steps;
      const rate = (options.rate / steps) * share;
      const factorRate = (options.scaleRate / steps) * share;
      for (const latent of latents) {
        latent.step({ rate, factorRate, zeroRate: rate });
        latent.refresh();
      }
      const done = step + 1;
      if (!onLook || Math.floor((done * LOOKS) / steps) === Math.floor((step * LOOKS) / steps)) continue;
      onLook({ step: done, loss: await trainer.loss(judges) });
    }
  }
}

class Trainer {
  private readonly rt: NativeRuntime;
  private readonly gradients: ReadonlyMap<string, Tensor>;
  private readonly ropes = new RopeCache();

  constructor(
    readonly task: BlockTask,
    private readonly lane: BlockLane,
    private readonly weights: BlockWeights,
    latents: ReadonlyMap<string, Latent>,
  ) {
    this.rt = lane.rt;
    this.gradients = new Map([...latents].map(([name, { gradient }]) => [name, gradient]));
  }

  /** Adds a batch's part to the gradients. */
  async gradient(batch: number): Promise<void> {
    await this.pass(batch, this.gradients);
  }

  /** The mean squared error of the output over some batches. */
  async loss(batches: readonly number[]): Promise<number> {
    let [sum, elements] = [0, 0];
    for (const batch of batches) {
      const part = await this.pass(batch, new Map());
      sum += part.sum;
      elements += part.elements;
    }
    return sum / elements;
  }

  private async pass(
    batch: number,
    gradients: ReadonlyMap<string, Tensor>,
  ): Promise<{ sum: number; elements: number }> {
    const { rt, lane, task } = this;
    const [input, target] = [lane.inputs.state(batch), lane.outputs.state(batch)];
    const made = await passBlock(rt, task.plan, this.weights, this.ropes, input, gradients);
    const [tokens, width] = target.h.shape as [number, number];
    const dy = rt.allocate('f32', [tokens, width]);
    const sums = rt.allocate('f64', [tokens]);
    try {
      ops.outputError(rt, made.output, target.h, dy, sums);
      if (gradients.size > 0) made.backward(dy);
      const rows = await readTyped<Float64Array>(rt, sums);
      return { sum: rows.reduce((a, b) => a + b, 0), elements: tokens * width };
    } finally {
      made.dispose();
      for (const tensor of [dy, sums]) tensor.dispose();
      for (const state of [input, target]) disposeState(state);
    }
  }
}
