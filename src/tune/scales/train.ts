import type { Tensor } from '../../../native/binding.js';
import { Random } from '../../calibrate/random.js';
import { batchSequences, disposeBatch, type TokenBatch } from '../../model/batch.js';
import { loadOuter } from '../../model/forward.js';
import { disposeWeights } from '../../model/weights.js';
import type { ModelTask, ScaleTraining, SolvedModel } from '../../quantize/model-task.js';
import { LOOKS } from './estimate.js';
import { HELD_MOST, type ScaleOptions, STEP_TOKENS } from './options.js';
import { Student } from './student.js';
import { batchesAtOnce, teach } from './teacher.js';
import { hasTrainedScales, TrainedScales } from './trained-scales.js';

/** The share of the batches that only choose the step, up to a most. */
const HELD_SHARE = 1 / 8;

type Look = ScaleTraining['curve'][number];

/**
 * Trains the group scales of a quantized model on KL(unquantized || quantized) of next-token distributions, a batch a step, by Adam with a
 * rate that rises for some steps and falls to 0; codes and zero points are fixed (EfficientQAT's second phase, Chen et al.,
 * arXiv:2407.11062, with the unquantized model's distributions instead of the text). What is best on batches held out, with scales as
 * they are stored, is kept, the start included. The same bytes for any number of threads.
 */
export async function trainScales(task: ModelTask, options: ScaleOptions): Promise<SolvedModel> {
  const { rt, modules } = task;
  const scales = new Map(
    [...modules].flatMap(([name, module]) =>
      hasTrainedScales(module) ? [[name, TrainedScales.begin(rt, module)] as const] : [],
    ),
  );
  const outer = await loadOuter(rt, task.source, task.graph);
  const batches = batchSequences(rt, task.sequences, STEP_TOKENS);
  const held: Tensor[] = [];
  try {
    const count = batches.length === 1 ? 0 : Math.min(HELD_MOST, Math.max(1, Math.round(batches.length * HELD_SHARE)));
    const trained = batches.slice(0, batches.length - count);
    // With one batch, that is all there is to judge by.
    const judges = count === 0 ? batches : batches.slice(-count);
    held.push(...(await teach(task, outer, judges)));
    const student = new Student(task, scales, outer);
    const tokensOf = (some: readonly TokenBatch[]) => some.reduce((sum, { tokens }) => sum + tokens, 0);
    const judge = async (): Promise<number> => {
      let sum = 0;
      for (const [i, batch] of judges.entries()) sum += await student.loss(batch, held[i] as Tensor);
      return sum / tokensOf(judges);
    };
    const curve: Look[] = [{ step: 0, loss: await judge(), training: null }];
    let best = curve[0] as Look;
    const tokens = await descend(task, outer, student, scales, trained, options, async (step, training) => {
      const look = { step, loss: await judge(), training };
      curve.push(look);
      if (look.loss >= best.loss) return;
      best = look;
      for (const each of scales.values()) each.keep();
    });
    const made = new Map([...scales].map(([name, each]) => [name, each.result()]));
    const { steps } = options;
    return { scales: made, training: { steps, kept: best.step, tokens, heldOut: tokensOf(judges), curve } };
  } finally {
    for (const tensor of held) tensor.dispose();
    for (const batch of batches) disposeBatch(batch);
    for (const each of scales.values()) each.dispose();
    disposeWeights(outer);
  }
}

/** The steps; `onLook` after some of them, with the mean loss of those since the one before. Returns how many tokens they were on. */
async function descend(
  task: ModelTask,
  outer: Parameters<typeof teach>[1],
  student: Student,
  scales: ReadonlyMap<string, TrainedScales>,
  batches: readonly TokenBatch[],
  { steps, rate, warmUp, beta1, beta2, seed }: ScaleOptions,
  onLook: (step: number, training: number) => Promise<void>,
): Promise<number> {
  const random = new Random(seed);
  const order: TokenBatch[] = [];
  while (order.length < steps) for (const i of random.shuffled(batches.length)) order.push(batches[i] as TokenBatch);
  const atOnce = batchesAtOnce(task, STEP_TOKENS);
  let [tokens, sum, since] = [0, 0, 0];
  for (let first = 0; first < steps; first += atOnce) {
    const part = order.slice(first, Math.min(steps, first + atOnce));
    task.check(first, steps);
    const targets = await teach(task, outer, part);
    try {
      for (const [i, batch] of part.entries()) {
        const step = first + i;
        task.check(step, steps);
        sum += await student.gradient(batch, targets[i] as Tensor);
        since += batch.tokens;
        tokens += batch.tokens;
        const share = Math.min((step + 1) / Math.min(warmUp, steps / 10), 1) * (1 - step / steps);
        for (const each of scales.values()) each.step({ step: step + 1, rate: rate * share, beta1, beta2 });
        const done = step + 1;
        if (Math.floor((done * LOOKS) / steps) === Math.floor((step * LOOKS) / steps)) continue;
        await onLook(done, sum / since);
        [sum, since] = [0, 0];
      }
    } finally {
      for (const tensor of targets) tensor.dispose();
    }
  }
  return tokens;
}
