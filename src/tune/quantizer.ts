import type { Tensor } from '../../native/binding.js';
import type { BlockWeights } from '../model/program.js';
import type { BlockLane, BlockTask } from '../quantize/block-task.js';
import type { Quantizer } from '../quantize/quantizer.js';
import { mapTensors, type QuantizedModule } from '../quantize/result.js';
import { dequantizeResult } from '../quantize/stored.js';
import { withoutGradient } from './block.js';
import { Latent } from './latent.js';
import type { TuneOptions } from './options.js';
import { train } from './train.js';

/**
 * A method whose codes, scales and zero points are trained on the block's output afterwards (SignRound, arXiv:2309.05516, from the codes
 * of `base`). Blocks with an operation that has no vector-Jacobian product stay as `base` made them, and so do 2:4 weights.
 */
export function tuned(base: Quantizer, options: TuneOptions): Quantizer {
  let warned = false;
  return {
    ...base,
    options: { ...base.options, ...recorded(options) },
    feedsFirst: true,
    async solveBlock(task) {
      const lacking = withoutGradient(task.plan);
      if (lacking !== undefined && !warned) {
        warned = true;
        task.warn(`--tune cannot train blocks with ${lacking}: they stay as ${base.method} makes them`, {
          lacking,
        });
      }
      const solved = new Map(
        [...task.start].map(([name, module]) => [name, mapTensors(module, (t) => t.view(t.shape))]),
      );
      if (lacking === undefined) await tuneBlock(task, solved, options);
      else for (const [name, module] of solved) solved.set(name, noted(module, `not trained: ${lacking}`));
      return solved;
    },
  };
}

/** Under names of their own among the options of the method before; `steps` are an option of the command. */
function recorded({ rate, scaleRate, start, trial, seed }: TuneOptions): Readonly<Record<string, unknown>> {
  return { tuneRate: rate, tuneScaleRate: scaleRate, tuneStart: start, tuneTrial: trial, tuneSeed: seed };
}

/** Puts trained modules in the place of those that the task begins with. */
async function tuneBlock(task: BlockTask, solved: Map<string, QuantizedModule>, options: TuneOptions): Promise<void> {
  const { rt, weights } = task.lanes[0] as BlockLane;
  const latents = new Map<string, Latent>();
  const started = performance.now();
  const around: BlockWeights = new Map(weights);
  const sparse: Tensor[] = [];
  try {
    for (const [name, module] of solved) {
      const key = `${name}.weight`;
      if (module.mask) sparse.push(dequantizeResult(rt, module));
      else latents.set(name, Latent.begin(rt, weights.get(key) as Tensor, module));
      around.set(key, latents.get(name)?.weight ?? (sparse.at(-1) as Tensor));
    }
    if (latents.size === 0) return;
    const training = await train(task, around, latents, options);
    const seconds = (performance.now() - started) / 1000 / latents.size;
    for (const [name, latent] of latents) {
      const module = solved.get(name) as QuantizedModule;
      const quality = { ...module.quality, seconds: (module.quality.seconds ?? 0) + seconds };
      const measures = { ...module.measures, tune: { ...training, curve: [...training.curve] } };
      const made = { ...module, ...(await latent.result()), quality, measures };
      for (const tensor of [module.codes, module.scales, module.zeros]) tensor?.dispose();
      solved.set(name, made);
    }
  } finally {
    for (const each of [...latents.values(), ...sparse]) each.dispose();
  }
}

function noted(module: QuantizedModule, note: string): QuantizedModule {
  const { quality } = module;
  return { ...module, quality: { ...quality, note: quality.note === undefined ? note : `${quality.note}; ${note}` } };
}
