import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { type CometWeight, cometKernel } from '../model/kernels/comet.js';
import { fits } from './layout.js';
import { cometLayout } from './layouts/comet.js';

/**
 * A quantized module as ops.gemmComet takes it, laid out on `rt`, a runtime of the CPU: so that what was not packed yet can be
 * evaluated on a device. Undefined where layout comet does not take it. The caller disposes of its tensors.
 */
export async function cometWeight(
  rt: NativeRuntime,
  checkpoint: CanonicalCheckpoint,
  name: string,
): Promise<CometWeight | undefined> {
  const module = checkpoint.module(name);
  const fit = cometLayout.fit(name, module, {});
  if (!fits(fit)) return undefined;
  const parts = { codes: checkpoint.require(name, 'codes'), scales: checkpoint.require(name, 'scales') };
  const permutation = checkpoint.part(name, 'permutation');
  const tensors = await cometLayout.pack({ rt, name, module, ...parts, permutation }, fit);
  for (const tensor of [...Object.values(parts), permutation]) tensor?.dispose();
  return cometKernel.bind({
    name,
    module,
    has: (suffix) => tensors.has(suffix),
    load: (suffix) => tensors.get(suffix) as Tensor,
    codes: true,
  });
}
