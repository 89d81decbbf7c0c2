import { firstFit, tileTarget } from '../layout-target.js';
import { cometLayout } from '../layouts/comet.js';
import { cometTwoLevelLayout } from '../layouts/comet-two-level.js';

/** W4Ax (layouts/comet.ts, comet-two-level.ts): what `lpq quantize --method fmpq` makes, with its activations. */
export const comet = tileTarget(
  'comet',
  'COMET: 4-bit weights in fragments for activations of 4 and 8 bits by blocks of 128 channels, of --method fmpq',
  (name, module, facts) => firstFit([cometTwoLevelLayout, cometLayout], name, module, facts),
  { activations: true },
);
