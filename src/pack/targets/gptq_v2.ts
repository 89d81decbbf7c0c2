import { gptqTarget } from '../gptq-family.js';
import type { PackTarget } from '../target.js';

/** GPTQ with zero points stored as they are: the safe form of asymmetric checkpoints. */
export const gptqV2: PackTarget = gptqTarget(
  'gptq_v2',
  'v2',
  'GPTQ tensors with true zero points (checkpoint_format gptq_v2): symmetric and asymmetric, 2, 3, 4 or 8 bits',
);
