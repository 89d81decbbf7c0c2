import type { ArtifactManifest } from '../../formats/artifact/schema.js';
import type { TensorReader } from '../../formats/safetensors/read.js';
import { typed } from '../../native/binding.js';
import { planSource } from '../model/graph.js';
import type { WeightShapes } from '../model/source.js';
import { checkHash } from './module-parts.js';
import type { Recorder } from './report.js';
import { verifiedTarget } from './targets/index.js';

/** The largest number of E4M3. */
const MOST_E4M3 = 448;

/**
 * Scales of a cache in FP8: one for the keys and one for the values of every attention of the model, each the stated largest magnitude
 * over 448, and no others.
 */
export async function checkKvScales(
  recorder: Recorder,
  { kvScales, target, provenance }: ArtifactManifest,
  weights: TensorReader,
  model: WeightShapes,
): Promise<void> {
  const place = verifiedTarget(target)?.kvScale;
  const asked = provenance.options.kvScales === true && place !== undefined;
  if (!kvScales && !asked) return;
  const message = asked
    ? 'the quantized checkpoint has calibrated scales of keys and values, and lpq.json does not'
    : `lpq.json states scales of keys and values, which ${target} does not store`;
  recorder.check(kvScales !== undefined && place !== undefined, { check: 'kv', message });
  if (!kvScales || !place) return;
  const attentions = attentionsOf(model);
  const stated = Object.keys(kvScales.most);
  recorder.check(`${[...stated].sort()}` === `${[...attentions].sort()}`, {
    ...{ check: 'kv', got: stated.join(', '), expected: attentions.join(', ') },
    message: 'the scales of keys and values do not match the attentions of the model',
  });
  const expected = new Set<string>();
  for (const [attention, { keys, values }] of Object.entries(kvScales.most))
    for (const [side, most] of [['k', keys] as const, ['v', values] as const]) {
      const { name, shape } = place(attention, side);
      expected.add(name);
      const spec = weights.has(name) ? weights.spec(name) : undefined;
      const form = { got: spec ? `${spec.dtype} [${spec.shape}]` : 'nothing', expected: `F32 [${shape}]` };
      const facts = { check: 'kv', tensor: name } as const;
      const wrong = `tensor '${name}' is not an FP8 scale of the cache`;
      if (!recorder.check(form.got === form.expected, { ...facts, ...form, message: wrong })) continue;
      const hash = kvScales.tensors[name];
      recorder.check(hash !== undefined, { ...facts, message: `tensor '${name}' has no hash in the manifest` });
      if (hash !== undefined) await checkHash(recorder, weights, facts, hash);
      const tensor = weights.tensor(name);
      const got = typed<Float32Array>(tensor)[0] as number;
      tensor.dispose();
      const scale = Math.fround(most / MOST_E4M3);
      const other = `tensor '${name}' is not the scale that follows from lpq.json`;
      recorder.check(got === scale, { ...facts, got, expected: scale, message: other });
    }
  for (const tensor of Object.keys(kvScales.tensors))
    recorder.check(expected.has(tensor), {
      ...{ check: 'kv', tensor },
      message: `tensor '${tensor}' is listed as a scale of the cache, but is not one`,
    });
}

/** Modules that keep keys and values. */
function attentionsOf(model: WeightShapes): string[] {
  return planSource(model).blocks.flatMap(({ attention }) =>
    attention.kind === 'attention' ? [attention.o.name.slice(0, attention.o.name.lastIndexOf('.'))] : [],
  );
}
