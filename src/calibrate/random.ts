import { LpqError } from '../core/error.js';

const MASK = (1n << 64n) - 1n;

/**
 * SplitMix64 (Steele, Lea and Flood 2014): a 64-bit counter that advances by the golden ratio, mixed by two
 * multiplications. Its whole state is the seed, so that a run is reproducible from the number it prints.
 */
export class Random {
  private state: bigint;

  /** Throws LPQ_USAGE for a seed that is no non-negative integer. */
  constructor(seed: number) {
    if (!Number.isSafeInteger(seed) || seed < 0)
      throw new LpqError('LPQ_USAGE', 'the seed is not a non-negative integer', {
        got: seed,
        expected: '0, 1, 2, ...',
      });
    this.state = BigInt(seed);
  }

  /** 64 uniform bits. */
  next(): bigint {
    this.state = (this.state + 0x9e3779b97f4a7c15n) & MASK;
    let mixed = this.state;
    mixed = ((mixed ^ (mixed >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
    mixed = ((mixed ^ (mixed >> 27n)) * 0x94d049bb133111ebn) & MASK;
    return mixed ^ (mixed >> 31n);
  }

  /** A uniform integer in [0, bound); draws that would favour small values are thrown away. */
  below(bound: number): number {
    const range = BigInt(bound);
    const limit = ((1n << 64n) / range) * range;
    for (;;) {
      const draw = this.next();
      if (draw < limit) return Number(draw % range);
    }
  }

  /** The numbers 0 .. count-1 in random order (Fisher and Yates, from the front: a prefix is a sample). */
  *shuffled(count: number): Generator<number> {
    const order = Array.from({ length: count }, (_, i) => i);
    for (let i = 0; i < count; i++) {
      const j = i + this.below(count - i);
      const chosen = order[j] as number;
      order[j] = order[i] as number;
      yield chosen;
    }
  }
}
