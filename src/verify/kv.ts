import { KV_FORMS } from '../../formats/kv/forms.js';
import { type KvModelScheme, type KvScheme, kvSchemeAt, kvWidths, printKvScheme } from '../../formats/kv/scheme.js';
import type { NativeRuntime } from '../../native/binding.js';
import { tell } from '../core/activity.js';
import { planSource } from '../model/graph.js';
import type { WeightShapes } from '../model/source.js';
import type { CacheMaker } from './kv-case.js';
import type { Case } from './kv-check.js';
import { appended, prompt, together } from './kv-runs.js';
import type { Recorder } from './report.js';

export interface KvContext {
  readonly runtime: NativeRuntime;
  readonly recorder: Recorder;
  /** lpq's caches, each with the device that it lies on. */
  readonly caches: readonly { readonly maker: CacheMaker; readonly device: NativeRuntime }[];
  readonly seed: number;
  /** Tokens of the long run, default 1000; 0: none. */
  readonly steps?: number;
}

/** Heads that a case has at most: every one of a model is packed alike. */
const MOST_HEADS = 2;
const STEPS = 1000;

/** Heads of a layer, and how its cache is stored. */
interface LayerShape {
  readonly scheme: KvScheme;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly scale: number;
}

/** The different ones of a model. A layer that reads the cache of another is described by that one's scheme. */
function shapesOf(scheme: KvModelScheme, source: WeightShapes, recorder: Recorder): LayerShape[] {
  const shapes = new Map<string, LayerShape>();
  const own = new Set<string>();
  for (const { attention } of planSource(source).blocks) {
    if (attention.kind !== 'attention') continue;
    const kvHeads = Math.min(attention.kvHeads, MOST_HEADS);
    const heads = (attention.heads / attention.kvHeads) * kvHeads;
    if (attention.reads === undefined) own.add(String(attention.index));
    const shape = {
      scheme: kvSchemeAt(scheme, attention.reads ?? attention.index),
      ...{ heads, kvHeads, headDim: attention.headDim, scale: attention.scale },
    };
    shapes.set(JSON.stringify(shape), shape);
  }
  for (const layer of Object.keys(scheme.layers ?? {}))
    recorder.check(own.has(layer), {
      check: 'kv',
      got: layer,
      message: `the KV cache scheme in lpq.json names layer ${layer}, which has no keys and values of its own`,
    });
  return [...shapes.values()];
}

/**
 * Proves the cache of keys and values that a scheme describes, for every shape of heads and bits of the model's layers, on random data: packed
 * bytes against the verifier's own quantizer and decoder, attention elementwise against fp64, prompts of every length around
 * multiples of the residual, one by one and all at once, pages in any order and one contiguous one, empty and one-token caches, and,
 * in small pages, 1000 appended tokens against a prompt. Of caches that kernels read too, where a device is given.
 */
export async function verifyCache(context: KvContext, model: KvModelScheme, source: WeightShapes): Promise<void> {
  const { runtime, recorder, caches, seed, steps = STEPS } = context;
  const shapes = shapesOf(model, source, recorder);
  const notes = new Set<string>();
  for (const { maker, device } of caches) {
    for (const { scheme, heads, kvHeads, headDim, scale } of shapes) {
      const block = maker.block(scheme);
      const batch = Math.max(scheme.residual, block);
      const why = maker.obstacle(scheme, headDim, device.device);
      if (why !== undefined) {
        notes.add(`not on ${device.device}: ${why}`);
        continue;
      }
      if (device !== runtime) notes.add(`and by kernels on ${device.device}`);
      for (const [i, [order, tokens]] of pagings(scheme, block, batch).entries()) {
        const page = { heads: kvHeads, headDim, tokens, order, block };
        const name = [
          ...(model.layers ? [kvWidths(scheme)] : []),
          `${heads}/${kvHeads} heads of ${headDim}, pages of ${tokens} tokens`,
          ...(order === 'outer' ? ['heads outside'] : []),
          ...(device === runtime ? [] : [device.device]),
        ].join(', ');
        const one: Case = { runtime, device, recorder, maker, seed, scheme, page, queries: { heads, scale }, name };
        const lengths = lengthsAround(batch);
        for (const length of lengths) {
          tell(`cache of ${name}: a prompt of ${length}`);
          await prompt(one, length);
        }
        tell(`cache of ${name}`);
        if (i !== 1) await together(one, lengths);
        if (i === 0 && steps > 0) await appended(one, steps);
      }
    }
  }
  recorder.detail('kv', [printKvScheme(model), ...notes].join('; '));
}

/** Small pages, one page for everything, and heads outside. */
function pagings(scheme: KvScheme, block: number, batch: number): readonly (readonly ['inner' | 'outer', number])[] {
  const { contiguous, leastPage } = KV_FORMS[scheme.form];
  const small = Math.max(block, leastPage);
  if (!contiguous) return [['inner', small]];
  const whole = Math.ceil((STEPS + 3 * batch) / small) * small;
  return [
    ['inner', small],
    ['inner', whole],
    ['outer', 2 * small],
  ];
}

function lengthsAround(batch: number): number[] {
  const near = [1, 2, 3].flatMap((times) => [times * batch - 1, times * batch, times * batch + 1]);
  return [...new Set([0, 1, 2, ...near, 3 * batch + Math.floor(batch / 3)])].filter((length) => length >= 0);
}
