import type { Engine } from '../engine.js';

/** lpq's own kernels, which take every type. */
export const lpq: Engine = {
  name: 'lpq',
  title: 'lpq',
  versions: 'of this version',
  evidence: 'its loader ran',
  forms: [
    {
      says: 'every type of 1 to 8 bits',
      options: '--bits 4',
      takes: ({ sparsity }) => sparsity === undefined,
      groups: [],
      target: 'sm80',
      scales: 'f16',
    },
  ],
  positiveScales: false,
  serve: (dir) => `lpq generate ${dir} --prompt "..."`,
};
