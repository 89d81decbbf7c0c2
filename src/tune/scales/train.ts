import type { Tensor } from '../../../native/binding.js';
import { Random } from '../../calibrate/random.js';
import { batchSequences, disposeBatch, type TokenBatch } from '../../model/batch.js';
import { loadOuter } from '../../model/forward.js';
import type { BlockWeights } from '../../model/program.js';
import { disposeWeights } from '../../model/weights.js';
import type { ModelTask, ScaleTraining, SolvedModel } from '../../quantize/model-task.js';
import { looksOf } from './estimate.js';
import { HELD_MOST, type ScaleOptions, STEP_TOKENS } from './options.js';
import { Student } from './student.js';
import { Teacher, teach } from './teacher.js';
import { normsOf, TrainedNorm } from './trained-norms.js';
import { hasTrainedScales, TrainedScales } from './trained-scales.js';

/** The share of the batches that only choose the step, up to a most. */
const HELD_SHARE = 1 / 8;

type Look = ScaleTraining['curve'][number];

/**
 * Trains the group scales of a quantized model on KL(unquantized || quantized) of next-token distributions, a batch a step, by Adam with a
 * rate that rises for some steps and falls to 0; with a rate of their own also weights of norms; codes and zero points are fixed (EfficientQAT's second phase, Chen et al.,
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
  const norms = new Map<string, TrainedNorm>();
  const parts = () => [...scales, ...norms];
  const outer = await loadOuter(rt, task.source, task.graph);
  const batches = batchSequences(rt, task.sequences, STEP_TOKENS);
  const held: Tensor[] = [];
  try {
    if (options.normRate !== undefined)
      for (const [name, norm] of normsOf(task.plan)) norms.set(name, await TrainedNorm.begin(rt, task.source, norm));
    const count = batches.length === 1 ? 0 : Math.min(HELD_MOST, Math.max(1, Math.round(batches.length * HELD_SHARE)));
    const trained = batches.slice(0, batches.length - count);
    // With one batch, that is all there is to judge by.
    const judges = count === 0 ? batches : batches.slice(-count);
    held.push(...(await teach(task, outer, judges)));
    const student = new Student(task, scales, outer, norms);
    const tokensOf = (some: readonly TokenBatch[]) => some.reduce((sum, { tokens }) => sum + tokens, 0);
    const judge = async (): Promise<number> => {
      let sum = 0;
      for (const [i, batch] of judges.entries()) sum += await student.loss(batch, held[i] as Tensor);
      return sum / tokensOf(judges);
    };
    const at: Standing = { step: 0, tokens: 0, curve: [] };
    await task.state?.load(async ({ note, tensor }) => {
      Object.assign(at, JSON.parse(note));
      for (const [name, each] of parts()) each.factors.restore(name, tensor);
      await rt.sync();
    });
    if (at.curve.length === 0) at.curve.push({ step: 0, loss: await judge(), training: null });
    const descent = { task, outer, student, scales, norms, batches: trained, options };
    await descend(descent, at, async (training) => {
      const least = Math.min(...at.curve.map(({ loss }) => loss));
      const loss = await judge();
      at.curve.push({ step: at.step, loss, training });
      if (loss < least) for (const [, each] of parts()) each.factors.keep();
      await rt.sync();
      await keep(task, at, new Map(parts().flatMap(([name, each]) => each.factors.saved(name))));
    });
    const made = new Map([...scales].map(([name, each]) => [name, each.result()]));
    const { curve, tokens } = at;
    const best = curve.reduce((least, look) => (look.loss < least.loss ? look : least));
    const madeNorms = new Map<string, Tensor>();
    for (const [name, norm] of norms) {
      const tensor = await norm.result();
      if (tensor) madeNorms.set(name, tensor);
    }
    const training = {
      ...(norms.size > 0 && { norms: norms.size }),
      steps: options.steps,
      kept: best.step,
      tokens,
      heldOut: tokensOf(judges),
      curve,
    };
    return { scales: made, norms: madeNorms, training };
  } finally {
    for (const tensor of held) tensor.dispose();
    for (const batch of batches) disposeBatch(batch);
    for (const [, each] of parts()) each.dispose();
    disposeWeights(outer);
  }
}

/** Keeps where steps stand, for a run that is stopped. */
async function keep({ rt, state }: ModelTask, at: Standing, tensors: ReadonlyMap<string, Tensor>): Promise<void> {
  if (!state) return;
  const here = new Map<string, Tensor>();
  try {
    for (const [name, tensor] of tensors) here.set(name, await rt.download(tensor));
    await state.save(at.step, here, JSON.stringify(at));
  } finally {
    for (const tensor of here.values()) tensor.dispose();
  }
}

/** What steps are taken with. */
interface Descent {
  readonly task: ModelTask;
  readonly outer: BlockWeights;
  readonly student: Student;
  readonly scales: ReadonlyMap<string, TrainedScales>;
  readonly norms: ReadonlyMap<string, TrainedNorm>;
  readonly batches: readonly TokenBatch[];
  readonly options: ScaleOptions;
}

/** Where they stand: how many were taken, and on how many tokens. */
interface Standing {
  step: number;
  tokens: number;
  readonly curve: Look[];
}

/** Takes the steps that are left; `onLook` after some of them, with the mean loss of those since the look before. */
async function descend(
  { task, outer, student, scales, norms, batches, options }: Descent,
  at: Standing,
  onLook: (training: number) => Promise<void>,
): Promise<void> {
  const { steps, rate, warmUp, beta1, beta2, seed, normRate = 0 } = options;
  const random = new Random(seed);
  const order: TokenBatch[] = [];
  while (order.length < steps) for (const i of random.shuffled(batches.length)) order.push(batches[i] as TokenBatch);
  const looks = looksOf(steps);
  const teacher = new Teacher(task, outer, order.slice(0, steps), STEP_TOKENS);
  let [sum, since] = [0, 0];
  try {
    while (at.step < steps) {
      task.check(at.step, steps);
      const batch = order[at.step] as TokenBatch;
      sum += await student.gradient(batch, await teacher.target(at.step));
      since += batch.tokens;
      at.tokens += batch.tokens;
      const share = Math.min((at.step + 1) / Math.min(warmUp, steps / 10), 1) * (1 - at.step / steps);
      at.step++;
      const now = { step: at.step, beta1, beta2 };
      for (const each of scales.values()) each.step({ ...now, rate: rate * share });
      for (const each of norms.values()) each.factors.step({ ...now, rate: normRate * share });
      if (Math.floor((at.step * looks) / steps) === Math.floor(((at.step - 1) * looks) / steps)) continue;
      await onLook(sum / since);
      [sum, since] = [0, 0];
    }
  } finally {
    teacher.dispose();
  }
}
