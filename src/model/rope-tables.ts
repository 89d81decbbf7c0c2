import { fromTyped, type Tensor } from '../../native/binding.js';
import { frequencies, type RopeSpec } from './rope.js';

export interface RopeTables {
  /** f32 [positions, rotary/2]. */
  readonly cos: Tensor;
  readonly sin: Tensor;
  readonly positions: number;
}

/**
 * cos and sin of the angles at positions 0 .. positions-1 of sequences that dependsOnLength() does not hold for.
 * Frequencies and angles are rounded to f32 before the cosine, as the implementations that models are trained and served
 * with do.
 */
export function ropeTables(spec: RopeSpec, positions: number): RopeTables {
  return tablesOf(spec, [{ length: 0, positions }]);
}

/** The same with one row a token of sequences of these lengths, one after another, whatever depends on a length. */
export function ropeTablesByToken(spec: RopeSpec, lengths: readonly number[]): RopeTables {
  return tablesOf(
    spec,
    lengths.map((length) => ({ length, positions: length })),
  );
}

/** What multiplies cos and sin in a sequence of `length` tokens. */
function attentionOf(by: RopeSpec['scaling'], length: number): number {
  if (by.kind === 'longrope') return length > by.original ? by.longAttention : by.attention;
  return by.kind === 'yarn' ? by.attention : 1;
}

function tablesOf(spec: RopeSpec, runs: readonly { length: number; positions: number }[]): RopeTables {
  const { rotary, scaling: by } = spec;
  const half = rotary / 2;
  const rows = runs.reduce((sum, run) => sum + run.positions, 0);
  const cos = new Float32Array(rows * half);
  const sin = new Float32Array(rows * half);
  let at = 0;
  for (const { length, positions } of runs) {
    const attention = attentionOf(by, length);
    const frequency = Float32Array.from(frequencies(spec, length));
    for (let position = 0; position < positions; position++)
      for (let i = 0; i < half; i++, at++) {
        const angle = Math.fround(position * (frequency[i] as number));
        cos[at] = Math.cos(angle) * attention;
        sin[at] = Math.sin(angle) * attention;
      }
  }
  const shape = [rows, half];
  return { cos: fromTyped('f32', shape, cos), sin: fromTyped('f32', shape, sin), positions: rows };
}
