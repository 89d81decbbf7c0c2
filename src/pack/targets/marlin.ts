import { firstFit, tileTarget } from '../layout-target.js';
import { marlinLayout } from '../layouts/marlin.js';

/** MARLIN (layouts/marlin.ts). */
export const marlin = tileTarget(
  'marlin',
  'MARLIN 4- and 8-bit weights for mma.m16n8k16: integers, f16 scales, groups of 32, 64, 128 or per channel',
  (name, module, facts) => firstFit([marlinLayout], name, module, facts),
);
