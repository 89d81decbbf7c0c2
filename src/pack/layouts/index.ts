import type { PackLayout } from '../layout.js';
import { awqLayout } from './awq.js';
import { cometLayout } from './comet.js';
import { cometTwoLevelLayout } from './comet-two-level.js';
import { mxfp4Layout, nvfp4Input, nvfp4Layout } from './fp4.js';
import { gptqLayout, gptqV2Layout } from './gptq.js';
import { marlinLayout } from './marlin.js';
import { modelOptFp8, modelOptNvfp4, modelOptNvfp4Input } from './modelopt.js';
import { mxfp8Layout } from './mxfp8.js';
import { packQuantized } from './pack-quantized.js';
import { sparseMarlinLayout } from './sparse-marlin.js';
import { tilusLayout } from './tilus.js';
import { turbomindLayout, turbomindSm70Layout } from './turbomind.js';
import { w4a8Layout } from './w4a8.js';
import { floatQuantized, floatStatic, intQuantized } from './whole-bytes.js';

/** Every layout that targets choose among; GGUF has a writer of its own. */
export const PACK_LAYOUTS: readonly PackLayout[] = [
  tilusLayout,
  marlinLayout,
  sparseMarlinLayout,
  turbomindLayout,
  turbomindSm70Layout,
  cometLayout,
  cometTwoLevelLayout,
  w4a8Layout,
  gptqLayout,
  gptqV2Layout,
  awqLayout,
  packQuantized,
  intQuantized,
  floatQuantized,
  floatStatic,
  nvfp4Layout,
  nvfp4Input,
  mxfp4Layout,
  mxfp8Layout,
  modelOptFp8,
  modelOptNvfp4,
  modelOptNvfp4Input,
];
