import { firstFit, tileTarget } from '../layout-target.js';
import { sparseMarlinLayout } from '../layouts/sparse-marlin.js';

/** Sparse-MARLIN (layouts/sparse-marlin.ts). */
export const sparseMarlin = tileTarget(
  'sparse_marlin',
  'Sparse-MARLIN 4- and 8-bit weights in 2:4 form for mma.sp.m16n8k32: symmetric, f16 scales, groups of 128 or per channel',
  (name, module, facts) => firstFit([sparseMarlinLayout], name, module, facts),
);
