import type { KvLayer, KvModelScheme } from '../../../formats/kv/scheme.js';
import { LpqError } from '../../core/error.js';
import { KV_BITS, type KvBits } from '../../kv/choose.js';
import { planSource } from '../../model/graph.js';
import type { WeightShapes } from '../../model/source.js';

/** Most layers that a list may name at once. */
const MOST = 10_000;

/** What --kv-layers says: '0=8,2-4=k8v4' names layers, from 0, and their bits. Throws LPQ_USAGE. */
export function parseKvLayers(text: string): ReadonlyMap<number, KvBits> {
  const layers = new Map<number, KvBits>();
  const refuse = (why: string, got: string): never => {
    throw new LpqError('LPQ_USAGE', `--kv-layers ${why}`, {
      got,
      expected: `layers and their bits (${KV_BITS.join(', ')}), such as 0=8,2-4=k8v4`,
    });
  };
  for (const item of text.split(',')) {
    const [, first, last = first, width] = /^(\d{1,5})(?:-(\d{1,5}))?=(\w+)$/.exec(item.trim()) ?? [];
    const bits = KV_BITS.find((each) => each === width);
    if (first === undefined || bits === undefined) return refuse(`does not take '${item.trim()}'`, item.trim());
    const [from, to] = [Number(first), Number(last)];
    if (to < from || to >= MOST) return refuse(`does not take the layers ${first}-${last}`, item.trim());
    for (let layer = from; layer <= to; layer++) {
      if (layers.has(layer)) return refuse(`names layer ${layer} twice`, text);
      layers.set(layer, bits);
    }
  }
  return layers;
}

/** The layers of a model that keep keys and values of their own. */
export function kvLayersOf(source: WeightShapes): KvLayer[] {
  return planSource(source).blocks.flatMap(({ attention }) =>
    attention.kind === 'attention' && attention.reads === undefined
      ? [{ layer: attention.index, kvHeads: attention.kvHeads, headDim: attention.headDim }]
      : [],
  );
}

/** Throws LPQ_USAGE for a scheme with a layer that the model lacks; `part`: the source is some of its blocks, so nobody knows. */
export function requireKvLayers({ layers = {} }: KvModelScheme, source: WeightShapes): void {
  if (source.part) return;
  const known = kvLayersOf(source).map(({ layer }) => layer);
  const stray = Object.keys(layers).find((layer) => !known.includes(Number(layer)));
  if (stray === undefined) return;
  throw new LpqError('LPQ_USAGE', `--kv-layers names layer ${stray}, which has no keys and values of its own`, {
    got: stray,
    expected: known.length > 8 ? `one of ${known.length} layers from ${known[0]} to ${known.at(-1)}` : known.join(', '),
  });
}
