/** Channels of a block of codes (COMET, section 3.2), which share a scale. */
export const BLOCK = 128;

/** How FMPQ orders channels before they are cut into blocks. */
export type SearchKind = 'none' | 'absmax' | 'error' | 'swap';

export interface FmpqOptions {
  /** Share of the multiplications that read 4-bit codes; 0: all activations have 8 bits. Where `threshold` is set, unused. */
  readonly share: number;
  /** A block has 4 bits if that adds at most so much to the relative squared error of the linears that read it. */
  readonly threshold?: number;
  readonly search: SearchKind;
  /** Stores a permutation of the input where none can be folded and one pays. */
  readonly gather: boolean;
  /** Lets the codes of 4-bit blocks stop short of a token's largest magnitude. */
  readonly clip: boolean;
  /** alpha of src/fmpq/scale.ts: folds powers of two into channels first; 0: none. */
  readonly scale: number;
  /** Rows of each input that errors are measured on. */
  readonly rows: number;
  readonly seed: number;
}

export const FMPQ_DEFAULTS: FmpqOptions = {
  share: 0.84,
  search: 'swap',
  gather: true,
  clip: true,
  scale: 0.5,
  rows: 1024,
  seed: 0,
};
