import type { Tensor } from '../../native/binding.js';
import { tell } from '../core/activity.js';
import type { BlockLane } from '../quantize/block-task.js';
import { Curvature } from './curvature.js';
import { LOOKS, type TuneOptions } from './options.js';
import { trainingRuntime } from './runtime.js';
import { Target } from './target.js';
import type { Trainer } from './trainer.js';

/** What training a block came to: mean squared errors of its output on the batches held out. */
export interface Training {
  readonly steps: number;
  /** The step that was kept; 0: what the method before made. */
  readonly kept: number;
  readonly curve: readonly Look[];
}

interface Look {
  readonly step: number;
  readonly loss: number;
}

/** Of every so many batches one makes the second moments. */
const MOMENTS_EVERY = 2;

/** The second moments of what the linears of a block read, which those of a feed share. The caller disposes of them. */
export async function curvatures(
  trainer: Trainer,
  names: ReadonlySet<string>,
  damp: number,
): Promise<Map<string, Curvature>> {
  const { block, lanes } = trainer.task;
  const rt = trainingRuntime((lanes[0] as BlockLane).rt);
  const [made, readers] = [new Map<string, Curvature>(), new Map<string, (x: Tensor) => void>()];
  for (const { linears } of block.stages.flatMap(({ feeds }) => feeds)) {
    const [first, ...others] = linears.filter(({ name }) => names.has(name));
    if (!first) continue;
    const curvature = new Curvature(rt, first.k);
    for (const { name } of [first, ...others]) made.set(name, curvature);
    readers.set(first.name, (x) => curvature.add(x));
  }
  for (let batch = 0; batch < trainer.batches; batch += MOMENTS_EVERY) {
    await trainer.read(batch, readers);
    await trainer.mark();
  }
  for (const curvature of new Set(made.values())) curvature.finish(damp);
  return made;
}

/**
 * Steps of targets against the gradients of the mean squared error of a block's output, a batch a step, with rates that fall to 0. What
 * is best on batches held out is kept, the codes of the method before included, so that steps never hurt there. The same bytes for any
 * number of threads.
 */
export async function train(
  trainer: Trainer,
  targets: readonly Target[],
  { steps, rate, leak, refits, grids, seed }: TuneOptions,
): Promise<Training> {
  const { task } = trainer;
  const order = trainer.order(seed);
  const before = { step: 0, loss: await trainer.loss() };
  const curve: Look[] = [before];
  let best: Look = before;
  // Steps are enqueued one ahead of the device.
  let behind = Promise.resolve();
  for (let step = 0; step < steps; step++) {
    task.check('tune');
    tell(`tuning block ${task.block.index + 1}, step`, step, steps);
    await trainer.gradient(order.next().value);
    const done = step + 1;
    const falls = (times: number) => Math.floor((done * times) / steps) !== Math.floor((step * times) / steps);
    const to = {
      rate: (rate / steps) * (1 - step / steps),
      leak: Math.exp(-leak / steps),
      refit: falls(refits),
      grids,
    };
    Target.step(targets, to);
    await behind;
    behind = trainer.mark();
    if (!falls(LOOKS)) continue;
    const look = { step: done, loss: await trainer.loss() };
    curve.push(look);
    if (look.loss >= best.loss) continue;
    best = look;
    for (const target of targets) target.keep();
  }
  await behind;
  return { steps, kept: best.step, curve };
}
