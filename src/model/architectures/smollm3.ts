import type { Architecture } from '../architecture.js';
import { llama } from './llama.js';

/** SmolLM3: Llama that rotates nothing in every fourth block, which has a window, if they are switched on. */
export const smollm3: Architecture = {
  ...llama,
  modelType: 'smollm3',
  className: 'SmolLM3ForCausalLM',
  defaults: { num_key_value_heads: 4 },
  tied: { keys: ['tie_word_embeddings'], otherwise: true },
  attention: {
    ...llama.attention,
    rope: {
      style: 'half',
      theta: 2_000_000,
      skip: { list: 'no_rope_layers', every: { keys: ['no_rope_layer_interval'], otherwise: 4 } },
    },
    window: {
      enabled: { keys: ['use_sliding_window'], otherwise: false },
      otherwise: null,
      fullBlocks: 0,
      layerTypes: true,
      unrotated: true,
    },
  },
};
