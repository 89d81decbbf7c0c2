import type { Architecture } from '../architecture.js';
import { olmo2 } from './olmo2.js';

/**
 * EXAONE 4.0 (arXiv:2507.11407): norms after the branches and on the heads of q and k; where there are windows, three blocks with
 * one and rotated positions for each that has neither.
 */
export const exaone4: Architecture = {
  ...olmo2,
  modelType: 'exaone4',
  className: 'Exaone4ForCausalLM',
  defaults: { num_key_value_heads: 32 },
  attention: {
    ...olmo2.attention,
    headNorm: { over: 'head' },
    bias: { q: false, k: false, v: false, o: false },
    rope: { style: 'half', theta: 10_000, slidingOnly: 'if-windowed' },
    window: {
      enabled: true,
      otherwise: 4096,
      fullBlocks: 0,
      fullEvery: { keys: ['sliding_window_pattern'], otherwise: 4 },
      layerTypes: true,
    },
  },
};
