import { firstFit, tileTarget } from '../layout-target.js';
import { w4a8Layout } from '../layouts/w4a8.js';

/** Two-level grids by activations of int8 (layouts/w4a8.ts): what `lpq quantize --group-scales integer` makes. */
export const w4a8 = tileTarget(
  'w4a8',
  'W4A8: 4-bit weights of a two-level grid in fragments for int8 activations, one scale per token, of --group-scales integer',
  (name, module, facts) => firstFit([w4a8Layout], name, module, facts),
);
