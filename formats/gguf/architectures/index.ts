import type { GgufArchitecture, GgufArchitectures } from './architecture.js';
import { DEEPSEEK } from './deepseek.js';
import { DELTA_RULE } from './delta.js';
import { DENSE } from './dense.js';
import { EXPERTS } from './experts.js';
import { GEMMA } from './gemma.js';
import { GEMMA_3N } from './gemma3n.js';
import { GRANITE_HYBRID } from './granite-hybrid.js';
import { HYBRID } from './hybrid.js';
import { LAYER_NORMED } from './layer-normed.js';
import { LLAMA } from './llama.js';
import { MINIMAX_M3 } from './minimax-m3.js';

/** Every architecture of llama.cpp that lpq has names for, by model_type of config.json. */
export const GGUF_ARCHITECTURES: GgufArchitectures = {
  ...LLAMA,
  ...GEMMA,
  ...GEMMA_3N,
  ...DENSE,
  ...LAYER_NORMED,
  ...EXPERTS,
  ...DEEPSEEK,
  ...HYBRID,
  ...GRANITE_HYBRID,
  ...DELTA_RULE,
  ...MINIMAX_M3,
};

/** The one of a model_type; undefined where there is none. */
export const ggufArchitecture = (modelType: string): GgufArchitecture | undefined =>
  Object.hasOwn(GGUF_ARCHITECTURES, modelType) ? GGUF_ARCHITECTURES[modelType] : undefined;

/** Their names in llama.cpp. */
export const GGUF_NAMES: readonly string[] = [...new Set(Object.values(GGUF_ARCHITECTURES).map(({ name }) => name))];
