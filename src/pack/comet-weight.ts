import type { CanonicalCheckpoint } from '../../formats/canonical/read.js';
import type { NativeRuntime, Tensor } from '../../native/binding.js';
import { type CometWeight, cometKernel } from '../model/kernels/comet.js';
import { firstFit } from './layout-target.js';
import { cometLayout } from './layouts/comet.js';
import { cometTwoLevelLayout } from './layouts/comet-two-level.js';

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
  const choice = firstFit([cometTwoLevelLayout, cometLayout], name, module, {});
  if (!('fit' in choice)) return undefined;
  const parts = { codes: checkpoint.require(name, 'codes'), scales: checkpoint.require(name, 'scales') };
  const permutation = checkpoint.part(name, 'permutation');
  const tensors = await choice.layout.pack({ rt, name, module, ...parts, permutation }, choice.fit);
  for (const tensor of [...Object.values(parts), permutation]) tensor?.dispose();
  return cometKernel.bind({
    name,
    module,
    has: (suffix) => tensors.has(suffix),
    load: (suffix) => tensors.get(suffix) as Tensor,
    codes: true,
  });
}
