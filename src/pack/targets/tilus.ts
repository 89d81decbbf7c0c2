import { firstFit, tileTarget } from '../layout-target.js';
import { tilusLayout } from '../layouts/tilus.js';

/** Any type of 1 to 8 bits for lpq's own kernels (layouts/tilus.ts). */
export const tilus = tileTarget(
  'tilus',
  "fragments as bytes for lpq's kernels: every type of 1 to 8 bits, f16 or bf16 scales, groups of 32, 64, 128 or per channel",
  (name, module, facts) => firstFit([tilusLayout], name, module, facts),
);
