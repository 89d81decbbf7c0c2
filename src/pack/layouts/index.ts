import type { PackLayout } from '../layout.js';
import { awqLayout } from './awq.js';
import { cometLayout } from './comet.js';
import { mxfp4Layout, nvfp4Layout } from './fp4.js';
import { gptqLayout, gptqV2Layout } from './gptq.js';
import { marlinLayout } from './marlin.js';
import { packQuantized } from './pack-quantized.js';
import { sparseMarlinLayout } from './sparse-marlin.js';
import { tilusLayout } from './tilus.js';
import { turbomindLayout, turbomindSm70Layout } from './turbomind.js';
import { floatQuantized, intQuantized } from './whole-bytes.js';

/** Every layout that targets choose among; GGUF has a writer of its own. */
export const PACK_LAYOUTS: readonly PackLayout[] = [
  tilusLayout,
  marlinLayout,
  sparseMarlinLayout,
  turbomindLayout,
  turbomindSm70Layout,
  cometLayout,
  gptqLayout,
  gptqV2Layout,
  awqLayout,
  packQuantized,
  intQuantized,
  floatQuantized(false),
  nvfp4Layout,
  mxfp4Layout,
];
