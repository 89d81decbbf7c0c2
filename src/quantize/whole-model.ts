import type { NativeRuntime } from '../../native/binding.js';
import { ops } from '../../native/ops.js';
import { planSource } from '../model/graph.js';
import type { ModelGraph } from '../model/program.js';
import type { QuantizeEvents } from './events.js';
import { ModelState } from './model-state.js';
import type { ScaleTraining } from './model-task.js';
import { linearsToQuantize } from './plan.js';
import type { Progress } from './progress.js';
import { storedModule } from './replay.js';
import { disposeModule, type QuantizedModule } from './result.js';
import type { QuantizeRequest } from './run.js';
import type { QuantScheme } from './scheme.js';
import type { SourceView } from './source-view.js';

/** What is gone on with; `root`: of the partial output. */
interface Whole {
  readonly rts: readonly NativeRuntime[];
  readonly graph: ModelGraph;
  readonly source: SourceView;
  readonly schemes: ReadonlyMap<string, QuantScheme>;
  readonly root: string;
}

/** What a method does to the model as a whole, once all modules are written: their scales, and norms, in the place of those. On the first device. */
export async function solveWholeModel(
  { rts, graph, source, schemes, root }: Whole,
  { quantizer, calibration, lmHead, activations }: QuantizeRequest,
  events: QuantizeEvents,
  progress: Progress,
): Promise<ScaleTraining | undefined> {
  if (!quantizer.solveModel || !calibration) return undefined;
  const rt = rts[0] as NativeRuntime;
  const { sequences, further = [] } = calibration;
  const written = await progress.modules();
  const modules = new Map<string, QuantizedModule>();
  try {
    for (const { name, n, k } of linearsToQuantize(graph, lmHead)) {
      const scheme = schemes.get(name);
      if (scheme) modules.set(name, storedModule(rt, name, [n, k], scheme, written));
    }
    const { scales, norms, training } = await quantizer.solveModel({
      ...{ rt, graph, plan: planSource(source), source, modules },
      ...{ sequences: [...sequences, ...further], seen: sequences.length },
      ...(activations && { forms: activations }),
      state: new ModelState(root),
      check: (step, of) => events.onModelStep?.(step, of),
    });
    try {
      for (const [name, made] of scales) {
        const here = await rt.download(made);
        await progress.rescale(name, { ...(modules.get(name) as QuantizedModule), scales: here });
        here.dispose();
      }
      for (const [name, made] of norms) {
        const stored = await source.stored(name);
        const own = rt.allocate(stored.dtype, stored.shape);
        ops.cast(rt, made, own);
        const here = await rt.download(own);
        await progress.replaceCarried(name, here);
        for (const tensor of [stored, own, here]) tensor.dispose();
      }
    } finally {
      for (const tensor of [...scales.values(), ...norms.values()]) tensor.dispose();
    }
    return training;
  } finally {
    for (const module of modules.values()) disposeModule(module);
    written.close();
  }
}
