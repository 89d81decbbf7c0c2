import type { Part } from '../../formats/canonical/tensors.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import type { Block, BlockWeights } from '../model/program.js';
import { disposeWeights } from '../model/weights.js';
import { forActivations } from './blocks.js';
import { linearsOf } from './linears.js';
import { disposeModule, type QuantizedModule } from './result.js';
import type { QuantScheme } from './scheme.js';
import { dequantizeResult } from './stored.js';

/** Where stored modules are read: the checkpoint that is being written, or a finished one. */
export interface StoredModules {
  part(name: string, part: Part): Tensor | undefined;
}

/**
 * The dequantized weights of a finished block's modules, by full weight name: those that the run which quantized them went
 * on computing with. The caller disposes of them.
 */
export function replayedWeights(
  rt: NativeRuntime,
  block: Block,
  schemes: ReadonlyMap<string, QuantScheme>,
  written: StoredModules,
): BlockWeights {
  const weights: BlockWeights = new Map();
  try {
    for (const linear of linearsOf(block)) {
      const scheme = schemes.get(linear.name);
      if (!scheme) continue;
      const stored = storedModule(rt, linear.name, [linear.n, linear.k], scheme, written);
      try {
        weights.set(`${linear.name}.weight`, forActivations(rt, dequantizeResult(rt, stored)));
      } finally {
        disposeModule(stored);
      }
    }
  } catch (error) {
    disposeWeights(weights);
    throw error;
  }
  return weights;
}

/** A module as it is stored, on a device; 2:4 weights without their mask, as their codes stand for 0. The caller disposes of it. */
export function storedModule(
  rt: NativeRuntime,
  name: string,
  shape: readonly [number, number],
  scheme: QuantScheme,
  written: StoredModules,
): QuantizedModule {
  const upload = (part: 'codes' | 'scales' | 'zeros'): Tensor | undefined => {
    const host = written.part(name, part);
    try {
      return host && rt.upload(host);
    } finally {
      host?.dispose();
    }
  };
  const zeros = upload('zeros');
  const global = written.part(name, 'global_scale');
  const globalScale = global && new DataView(global.bytes().slice().buffer).getFloat32(0, true);
  global?.dispose();
  return {
    scheme,
    shape,
    codes: upload('codes') as Tensor,
    scales: upload('scales') as Tensor,
    ...(zeros && { zeros }),
    ...(globalScale !== undefined && { globalScale }),
    quality: { method: '', bitsPerWeight: 0, relativeError: null, damp: null },
  };
}
