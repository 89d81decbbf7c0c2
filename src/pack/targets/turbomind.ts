import { firstFit, tileTarget } from '../layout-target.js';
import { turbomindLayout, turbomindSm70Layout } from '../layouts/turbomind.js';

/** TurboMind for sm75 and later (layouts/turbomind.ts). */
export const turbomind = tileTarget(
  'turbomind',
  'TurboMind fragments for sm75 to sm90: u4 and u8 with fused {scale, -zero scale}, fp4 (mxfp4), fp8, groups of 32, 64 or 128',
  (name, module, facts) => firstFit([turbomindLayout], name, module, facts),
);

/** TurboMind for sm70. */
export const turbomindSm70 = tileTarget(
  'turbomind_sm70',
  'TurboMind words for mma.m8n8k4 of sm70, the same types; lpq verifies them but has no kernel for sm70',
  (name, module, facts) => firstFit([turbomindSm70Layout], name, module, facts),
);
