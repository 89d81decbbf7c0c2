import type { Engine, EngineForm, StoredExperts } from '../engine.js';
import { FP8, INT4, integers } from './forms.js';

/** Its experts stand in one tensor a block: those that it looks for there are not found under names of their own. */
const unlessFused = (stored: StoredExperts) =>
  stored === 'fused' ? 'transformers 5 expects the experts of this architecture in one tensor per block' : undefined;

const ANY: EngineForm = { ...INT4, experts: unlessFused };

/** transformers with the compressed-tensors library, which decodes weights when they are loaded. */
export const transformers: Engine = {
  name: 'transformers',
  title: 'transformers',
  versions: '5.18 with compressed-tensors 0.20',
  evidence: 'its loader ran',
  forms: [
    {
      ...ANY,
      says: 'integers of 2 to 8 bits, symmetric',
      options: '--bits 4',
      takes: integers([2, 3, 4, 5, 6, 7, 8], true),
    },
    {
      ...ANY,
      says: 'integers of 2 to 8 bits with zero points',
      options: '--bits 4 --asym',
      takes: integers([2, 3, 4, 5, 6, 7, 8], false),
      experts: (stored) =>
        stored === 'none' ? undefined : 'transformers 5 does not read zero points of experts and stops',
    },
    { ...FP8, says: 'FP8 weights', target: 'compressed-tensors', experts: unlessFused },
  ],
  positiveScales: false,
  serve: (dir) => `transformers serve ${dir}`,
};
