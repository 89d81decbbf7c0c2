import type { Quantizer } from '../../quantize/quantizer.js';
import { trainingRuntime } from '../runtime.js';
import type { ScaleOptions } from './options.js';
import { trainScales } from './train.js';

/** A method whose group scales are trained on the model's end once all modules are solved. */
export function withTrainedScales(base: Quantizer, options: ScaleOptions): Quantizer {
  return {
    ...base,
    options: { ...base.options, ...recorded(options) },
    solveModel: (task) => trainScales({ ...task, rt: trainingRuntime(task.rt) }, options),
  };
}

/** Under names of their own among the options of the method before; `steps` are an option of the command. */
function recorded({ rate, warmUp, beta1, beta2, seed, normRate }: ScaleOptions): Readonly<Record<string, unknown>> {
  return {
    ...{ tuneScalesRate: rate, tuneScalesWarmUp: warmUp, tuneScalesBeta1: beta1, tuneScalesBeta2: beta2 },
    tuneScalesSeed: seed,
    ...(normRate !== undefined && { tuneNormsRate: normRate }),
  };
}
