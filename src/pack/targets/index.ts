import { LpqError } from '../../core/error.js';
import type { PackTarget } from '../target.js';
import { awq } from './awq.js';
import { comet } from './comet.js';
import { compressedTensors, compressedTensorsW8A8 } from './compressed-tensors.js';
import { gguf, ggufSearched } from './gguf.js';
import { gptq } from './gptq.js';
import { gptqV2 } from './gptq_v2.js';
import { HARDWARE } from './hardware.js';
import { marlin } from './marlin.js';
import { sparseMarlin } from './sparse_marlin.js';
import { tilus } from './tilus.js';
import { turbomind, turbomindSm70 } from './turbomind.js';

/** Every target, in the order that lists show. */
export const PACK_TARGETS: readonly PackTarget[] = [
  ...HARDWARE,
  marlin,
  sparseMarlin,
  turbomind,
  turbomindSm70,
  tilus,
  comet,
  gptq,
  gptqV2,
  awq,
  compressedTensors,
  compressedTensorsW8A8,
  gguf,
  ...ggufSearched,
];

/** The target called `name`. Throws LPQ_TARGET with the list of names. */
export function packTarget(name: string): PackTarget {
  const target = PACK_TARGETS.find((each) => each.name === name);
  if (target) return target;
  throw new LpqError('LPQ_TARGET', `'${name}' is not a pack target`, {
    got: name,
    expected: PACK_TARGETS.map((each) => each.name).join(', '),
  });
}
