import { CanonicalSource } from '../../formats/canonical/source.js';
import type { NativeRuntime } from '../../native/binding.js';
import type { WeightSource } from '../model/source.js';
import { cometWeight } from '../pack/comet-source.js';

/**
 * A quantized checkpoint for a device that multiplies codes: modules that read codes (docs/fmpq.md) are laid out for its kernel when
 * they are asked for, by `decoder`, a runtime of the CPU. Any other source is given back as it is.
 */
export function withComet<T extends WeightSource & { close(): void }>(
  source: T,
  decoder: NativeRuntime,
): WeightSource & { close(): void } {
  if (!(source instanceof CanonicalSource)) return source;
  const { checkpoint } = source;
  const reads = checkpoint.moduleNames().filter((name) => checkpoint.module(name).activations);
  if (reads.length === 0) return source;
  const modules = new Set(reads.map((name) => `${name}.weight`));
  const packed = (name: string) =>
    modules.has(name) ? cometWeight(decoder, checkpoint, name.slice(0, -'.weight'.length)) : undefined;
  // Methods of the source read its own fields.
  return new Proxy<WeightSource & { close(): void }>(source, {
    get: (target, key) => {
      if (key === 'packed') return packed;
      const value: unknown = Reflect.get(target, key, target);
      return typeof value === 'function' ? value.bind(target) : value;
    },
  });
}
