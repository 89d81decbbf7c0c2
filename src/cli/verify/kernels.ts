import type { NativeRuntime } from '../../../native/binding.js';
import { artifactSource } from '../../artifact/open.js';
import { replaced } from '../../artifact/replaced.js';
import { type Divergence, textDivergence } from '../../eval/divergence.js';
import { multipliesCodes } from '../../model/packed.js';
import type { WeightSource } from '../../model/source.js';
import type { Recorder } from '../../verify/report.js';
import { quantizesActivations } from '../../verify/targets/index.js';
import type { Run } from '../run.js';
import { written } from './text.js';

export interface Through {
  readonly dir: string;
  readonly against: string;
  /** Of the CPU, and of a device whose kernels multiply packed bytes. */
  readonly runtime: NativeRuntime;
  readonly kernel: NativeRuntime;
  /** The quantized checkpoint; and as a device reads it that multiplies codes. */
  readonly reference: WeightSource;
  readonly there: WeightSource;
  /** The text. */
  readonly file: string;
}

/** Relative difference of perplexity that the roundings of a kernel may make: 0.1 %. */
const PERPLEXITY = 1e-3;
/**
 * Activations that become codes: a rounding before that moves some over a tie, by a whole step, and these move others behind them, until a few blocks
 * further on most roundings are other ones than on the CPU. Each window's difference is then a draw, and the mean of as many as there
 * are is judged by its standard error: 5 of them are exceeded by chance once in 6000 times (Student's t of 15 degrees of freedom).
 */
const DRAWS = { ctx: 64, windows: 16 } as const;
const DEVIATIONS = 5;

/** Here weights are compared: packed caches are left out, and so is the rounding of inputs, which kernels have or have not. */
const WEIGHTS = { kv: undefined, latents: undefined, reads: () => undefined };

/**
 * The artifact on a device, its packed modules through the kernels that they were packed for. The perplexity must be within a thousandth of the
 * quantized checkpoint's; where activations become codes, of what that gives on the same device, logit by logit, and what the CPU
 * gives within five standard errors more.
 */
export async function throughKernels(
  recorder: Recorder,
  options: Through,
  run: Run,
): Promise<{ readonly found: Divergence; readonly written: readonly number[] }> {
  const { dir, runtime: rt, kernel, against, reference, there, file } = options;
  const onProgress = () => run.interrupt.check();
  const artifact = artifactSource(dir, rt, true, multipliesCodes(kernel));
  const opened = [artifact];
  const packed = replaced(artifact, WEIGHTS);
  try {
    const coded = multipliesCodes(kernel) && quantizesActivations(artifact.manifest.target);
    if (!coded) {
      const plain = replaced(reference, WEIGHTS);
      const found = await textDivergence(rt, plain, packed, file, {
        ctx: 256,
        windows: 4,
        runtime: kernel,
        onProgress,
      });
      within(recorder, options, found, Math.abs(found.ppl.mean / found.referencePpl.mean - 1), PERPLEXITY);
      return { found, written: await written(kernel, packed, file, run) };
    }
    // W4Ax is the checkpoint's own; codes of 8 bits are its kernel's, which the CPU's operation of that name rounds likewise.
    const simulated = Object.values(artifact.manifest.modules).some(({ activations }) => activations);
    const cpu = simulated ? reference : artifactSource(dir, rt, true, true);
    if (!simulated) opened.push(cpu as typeof artifact);
    const found = await textDivergence(rt, replaced(cpu, WEIGHTS), packed, file, {
      ...DRAWS,
      runtime: kernel,
      onProgress,
    });
    // A shorter text has too few windows to judge by.
    if (found.windows === DRAWS.windows)
      within(
        recorder,
        options,
        found,
        Math.abs(found.excess.mean),
        PERPLEXITY + DEVIATIONS * (found.excess.error as number),
      );
    if (!simulated) return { found, written: await written(kernel, packed, file, run) };
    const window = { ctx: 256, windows: 4, onProgress };
    const same = await textDivergence(kernel, replaced(there, WEIGHTS), packed, file, window);
    recorder.check(same.largest.difference === 0, {
      check: 'end-to-end',
      got: same.largest.difference,
      expected: 0,
      message: `through the kernels of ${kernel.device} the logits differ from those of ${against} on that device: the largest difference is ${same.largest.difference}`,
    });
    return { found, written: await written(kernel, packed, file, run) };
  } finally {
    for (const each of opened) each.close();
  }
}

function within(recorder: Recorder, { kernel, against }: Through, found: Divergence, off: number, bar: number): void {
  recorder.check(off <= bar, {
    check: 'end-to-end',
    got: found.ppl.mean,
    expected: found.referencePpl.mean,
    message: `through the kernels of ${kernel.device} the perplexity is ${(100 * off).toFixed(3)} % away from that of ${against}, more than ${(100 * bar).toFixed(3)} %`,
  });
}
