import { gptqTarget } from '../gptq-target.js';
import { gptqV2Layout } from '../layouts/gptq.js';
import { GPTQ_WIDTHS, HALF_SCALES, NO_EXPERTS, SYMMETRIC_GPTQ, V1_ZEROS } from '../reader-limits.js';
import type { PackTarget } from '../target.js';

/** GPTQ with zero points stored as they are: the safe form of asymmetric checkpoints. */
export const gptqV2: PackTarget = gptqTarget(
  gptqV2Layout,
  'v2',
  'GPTQ tensors with true zero points (checkpoint_format gptq_v2): symmetric and asymmetric, 2, 3, 4 or 8 bits',
  [SYMMETRIC_GPTQ, V1_ZEROS, GPTQ_WIDTHS, NO_EXPERTS, HALF_SCALES],
);
