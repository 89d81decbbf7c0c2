import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import path from 'node:path';

/** Package with the kernels for NVIDIA GPUs, which only those who have one need. */
const CUDA_PACKAGE = 'lpq-cuda';

/**
 * Where the addon may lie, the first that is there counts: LPQ_ADDON, what was compiled on this machine, what came with the package.
 * `here`: native/ of the sources or of dist/.
 */
export function addonPlaces(here: string): string[] {
  const prebuilt = path.join('prebuilds', `${process.platform}-${process.arch}`, 'lpq.node');
  return [
    process.env.LPQ_ADDON,
    path.join(here, 'build', 'lpq.node'), // run from source
    path.join(here, '..', '..', 'native', 'build', 'lpq.node'), // dist/native -> native/build
    path.join(here, '..', 'lpq.node'), // a bundle
    path.join(here, '..', '..', prebuilt), // dist/native -> prebuilds
  ].filter((place): place is string => place !== undefined && place !== '');
}

/** Lets the addon find kernels that lie in a package of their own: not beside it, and nowhere that LPQ_CUDA_FATBIN names. */
export function nameCudaKernels(addon: string): void {
  if (process.env.LPQ_CUDA_FATBIN || existsSync(path.join(path.dirname(addon), 'lpq_kernels.fatbin'))) return;
  try {
    process.env.LPQ_CUDA_FATBIN = createRequire(import.meta.url).resolve(`${CUDA_PACKAGE}/lpq_kernels.fatbin`);
  } catch {
    // Not installed: lpq computes on the CPU, and says why where a GPU is asked for.
  }
}
