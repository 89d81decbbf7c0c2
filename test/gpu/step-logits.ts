import { type NativeRuntime, readTyped } from '../../native/binding.js';
import { type CacheForm, makeCache } from '../../src/generate/cache.js';
import { disposeResident, loadResident } from '../../src/generate/resident.js';
import { disposeStep, type Entry, makeStep, runStep } from '../../src/generate/step.js';
import type { WeightSource } from '../../src/model/source.js';

/** Logits behind the first `first` tokens, and behind every later one, which come one by one over what `form` keeps of those before. */
export async function stepLogits(
  rt: NativeRuntime,
  source: WeightSource,
  sequence: Int32Array,
  form: CacheForm,
  first: number,
): Promise<Float32Array[]> {
  const model = await loadResident(rt, source);
  const cache = makeCache(rt, form, { blocks: model.graph.blocks.length, slots: 1, most: sequence.length });
  const found: Float32Array[] = [];
  const run = async (entry: Entry) => {
    const step = makeStep(rt, [entry]);
    const tensor = await runStep(rt, model, cache, step);
    found.push((await readTyped<Float32Array>(rt, tensor)).slice());
    tensor.dispose();
    disposeStep(step);
  };
  await run({ slot: 0, past: 0, ids: sequence.subarray(0, first) });
  for (let t = first; t < sequence.length; t++) await run({ slot: 0, past: t, ids: sequence.subarray(t, t + 1) });
  cache.dispose();
  disposeResident(model);
  return found;
}
