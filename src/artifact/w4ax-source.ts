import type { CanonicalSource } from '../../formats/canonical/source.js';
import type { NativeRuntime } from '../../native/binding.js';
import type { WeightSource } from '../model/source.js';
import { cometWeight } from '../pack/comet-weight.js';
import { replaced } from './replaced.js';

/**
 * A quantized checkpoint for a device that multiplies codes: modules that read codes (docs/fmpq.md) are laid out for its kernel when
 * they are asked for, by `decoder`, a runtime of the CPU. Closing it closes `source`.
 */
export function w4axSource(source: CanonicalSource, decoder: NativeRuntime): WeightSource & { close(): void } {
  const { checkpoint } = source;
  const names = checkpoint.moduleNames().filter((name) => checkpoint.module(name).activations);
  const modules = new Map(names.map((name) => [`${name}.weight`, name]));
  return {
    ...replaced(source, {
      packed(weight) {
        const module = modules.get(weight);
        return module === undefined ? undefined : cometWeight(decoder, checkpoint, module);
      },
    }),
    close: () => source.close(),
  };
}
