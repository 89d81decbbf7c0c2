import type { Tensor } from '../../native/binding.js';
import type { BlockWeights } from '../model/program.js';
import type { BlockLane, BlockTask } from '../quantize/block-task.js';
import { linearsOf } from '../quantize/linears.js';
import type { Quantizer } from '../quantize/quantizer.js';
import { mapTensors, type QuantizedModule } from '../quantize/result.js';
import { dequantizeResult } from '../quantize/stored.js';
import { withoutGradient } from './block.js';
import type { Curvature } from './curvature.js';
import { tuningBytes } from './memory.js';
import type { TuneOptions } from './options.js';
import { trainingRuntime } from './runtime.js';
import { STEP_TOKENS } from './scales/options.js';
import { rowsOf, type Stack, stacksOf } from './stacked.js';
import { Target } from './target.js';
import { curvatures, train } from './train.js';
import { Trainer } from './trainer.js';

/**
 * A method whose codes and scales are trained on the block's output afterwards, from the codes of `base`. Blocks with an operation that has no vector-Jacobian product stay as `base` made them, and so do 2:4 weights.
 */
export function tuned(base: Quantizer, options: TuneOptions): Quantizer {
  let warned = false;
  return {
    ...base,
    options: { ...base.options, ...recorded(options) },
    feedsFirst: true,
    batchTokens: STEP_TOKENS,
    blockBytes: (block) => tuningBytes(block, linearsOf(block), STEP_TOKENS),
    async solveBlock(task) {
      const lacking = withoutGradient(task.plan);
      if (lacking !== undefined && !warned) {
        warned = true;
        task.warn(`--tune cannot train blocks with ${lacking}: they stay as ${base.method} makes them`, {
          lacking,
        });
      }
      const { rt } = task.lanes[0] as BlockLane;
      const solved = new Map([...task.start].map(([name, module]) => [name, mapTensors(module, (t) => rt.upload(t))]));
      if (lacking === undefined) await tuneBlock(task, solved, options);
      else for (const [name, module] of solved) solved.set(name, noted(module, `not trained: ${lacking}`));
      return solved;
    },
  };
}

/** Under names of their own among the options of the method before; `steps` are an option of the command. */
function recorded({ rate, leak, damp, refits, grids, seed }: TuneOptions): Readonly<Record<string, unknown>> {
  return {
    tuneRate: rate,
    tuneLeak: leak,
    tuneDamp: damp,
    tuneRefits: refits,
    ...(grids && { tuneGrids: grids }),
    tuneSeed: seed,
  };
}

/** Puts trained modules in the place of those that the task begins with. */
async function tuneBlock(task: BlockTask, solved: Map<string, QuantizedModule>, options: TuneOptions): Promise<void> {
  const { weights, forms, rt: own } = task.lanes[0] as BlockLane;
  const rt = trainingRuntime(own);
  const started = performance.now();
  const around: BlockWeights = new Map(weights);
  if (forms) around.activations = forms;
  const owned: { dispose(): void }[] = [];
  const dequantized = new Map<string, Tensor>();
  const dense = [...solved].filter(([, { mask }]) => !mask);
  try {
    // What linears read is that of the codes before them.
    for (const [name, module] of solved) {
      const weight = dequantizeResult(rt, module);
      dequantized.set(name, weight);
      around.set(`${name}.weight`, weight);
    }
    if (dense.length === 0) return;
    const moments = await curvatures(
      new Trainer(task, around, new Map()),
      new Set(dense.map(([name]) => name)),
      options.damp,
    );
    owned.push(...new Set(moments.values()));
    const targets = new Map<Stack, Target>();
    const gradients = new Map<string, Tensor>();
    const linears = dense.map(([name, module]) => {
      const [source, curvature] = [weights.get(`${name}.weight`) as Tensor, moments.get(name) as Curvature];
      return { name, module, source, curvature };
    });
    for (const stack of stacksOf(rt, linears)) {
      const target = Target.begin(rt, stack.source, stack.module, stack.curvature);
      owned.push(target, stack);
      targets.set(stack, target);
      for (const rows of stack.rows) {
        dequantized.get(rows.name)?.dispose();
        dequantized.delete(rows.name);
        const [weight, gradient] = [rowsOf(target.weight, rows), rowsOf(target.gradient, rows)];
        owned.push(weight, gradient);
        around.set(`${rows.name}.weight`, weight);
        gradients.set(rows.name, gradient);
      }
    }
    const training = await train(new Trainer(task, around, gradients), [...targets.values()], options);
    const seconds = (performance.now() - started) / 1000 / linears.length;
    for (const [stack, target] of targets) {
      const result = await target.result();
      for (const rows of stack.rows) {
        const module = solved.get(rows.name) as QuantizedModule;
        const quality = { ...module.quality, seconds: (module.quality.seconds ?? 0) + seconds };
        const measures = { ...module.measures, tune: { ...training, curve: [...training.curve] } };
        const made = mapTensors({ ...module, ...result, quality, measures }, (tensor) => rowsOf(tensor, rows));
        for (const tensor of [module.codes, module.scales, module.zeros]) tensor?.dispose();
        solved.set(rows.name, made);
      }
      for (const tensor of Object.values(result)) tensor.dispose();
    }
    await rt.sync();
  } finally {
    for (const each of [...owned, ...dequantized.values()]) each.dispose();
  }
}

function noted(module: QuantizedModule, note: string): QuantizedModule {
  const { quality } = module;
  return { ...module, quality: { ...quality, note: quality.note === undefined ? note : `${quality.note}; ${note}` } };
}
