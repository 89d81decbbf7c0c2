import type { VerifiedTarget } from '../target.js';

/** A target of lpq's kernels. */
const own = (name: string, ...layouts: string[]): VerifiedTarget => ({ name, layouts, left: 'carried', files: [] });

export const OWN: readonly VerifiedTarget[] = [
  ...['marlin', 'sparse_marlin', 'turbomind', 'turbomind_sm70', 'tilus'].map((name) => own(name, name)),
  { ...own('comet', 'comet', 'comet_two_level'), activations: 'blocks' },
  { ...own('w4a8', 'w4a8'), activations: 'tokens' },
  ...['sm80', 'sm86'].map((name) => own(name, 'marlin', 'turbomind', 'tilus')),
  ...['sm89', 'sm90'].map((name) => own(name, 'tilus')),
];
