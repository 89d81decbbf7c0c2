import type { Architecture } from '../architecture.js';
import { olmo2 } from './olmo2.js';

/** OLMo 3: OLMo 2 with three blocks with a window for each without; a scaling of positions holds for those without alone. */
export const olmo3: Architecture = {
  ...olmo2,
  modelType: 'olmo3',
  className: 'Olmo3ForCausalLM',
  attention: {
    ...olmo2.attention,
    rope: { style: 'half', theta: 500_000, local: { keys: ['rope_theta'], otherwise: 500_000 } },
    window: { enabled: true, otherwise: 4096, fullBlocks: 0, fullEvery: 4, layerTypes: true },
  },
};
