import type { WeightSource } from '../model/source.js';

/** The source with some of its members replaced. */
export function replaced(source: WeightSource, by: Partial<WeightSource>): WeightSource {
  return {
    dir: source.dir,
    config: source.config,
    kv: source.kv,
    latents: source.latents,
    names: () => source.names(),
    has: (name) => source.has(name),
    shape: (name) => source.shape(name),
    quantized: (name) => source.quantized?.(name) ?? false,
    tensor: (name) => source.tensor(name),
    packed: (name) => source.packed?.(name),
    reads: (name) => source.reads?.(name),
    mixed: (name) => source.mixed?.(name),
    ...by,
  };
}
