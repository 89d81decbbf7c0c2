import type { KvScheme, StoredLatents } from '../../formats/kv/schema.js';
import type { NativeRuntime } from '../../native/binding.js';
import type { WeightShapes } from '../model/source.js';
import { verifyCache } from './kv.js';
import type { CacheMaker } from './kv-case.js';
import type { LatentMaker } from './latent-case.js';
import { verifyLatents } from './latents.js';
import type { Recorder } from './report.js';

/** lpq's packed caches, handed in so that the verifier shares nothing with them: the reference's, the kernels', and that of latents. */
export interface CacheMakers {
  readonly reference: CacheMaker;
  readonly kernel: CacheMaker;
  readonly latents: LatentMaker;
}

/** Proves the packed cache that lpq.json describes, on the CPU and, where one is given, on a device. */
export async function verifyPacked(
  {
    kernel,
    ...context
  }: {
    readonly runtime: NativeRuntime;
    readonly kernel?: NativeRuntime | undefined;
    readonly recorder: Recorder;
    readonly seed: number;
  },
  makers: CacheMakers,
  kv: KvScheme | StoredLatents,
  shapes: WeightShapes,
): Promise<void> {
  if ('keys' in kv) {
    const caches = [{ maker: makers.reference, device: context.runtime }];
    if (kernel) caches.push({ maker: makers.kernel, device: kernel });
    await verifyCache({ ...context, caches }, kv, shapes);
    return;
  }
  const devices = [context.runtime, ...(kernel ? [kernel] : [])];
  await verifyLatents({ ...context, devices, maker: makers.latents }, kv, shapes);
}
