import { Random } from '../calibrate/random.js';
import { LpqError } from '../core/error.js';

/** How the next token is chosen among the logits. */
export interface Sampling {
  /** Divides logits; 0: the likeliest token, ties to the lower id. */
  readonly temperature: number;
  /** Only so many of the likeliest; 0: all. */
  readonly topK: number;
  /** Only the likeliest whose probabilities together reach this share, the one that reaches it included; 1: all. */
  readonly topP: number;
  readonly seed: number;
}

export const GREEDY: Sampling = { temperature: 0, topK: 0, topP: 1, seed: 0 };

/** Throws LPQ_USAGE naming the option. */
export function checkSampling({ temperature, topK, topP }: Sampling): void {
  const refuse = (flag: string, got: number, expected: string) => {
    throw new LpqError('LPQ_USAGE', `${flag} does not take ${got}`, { got, expected });
  };
  if (!(temperature >= 0) || !Number.isFinite(temperature)) refuse('--temperature', temperature, 'a number from 0 on');
  if (!Number.isSafeInteger(topK) || topK < 0) refuse('--top-k', topK, 'an integer of at least 0 (0: all)');
  if (!(topP > 0 && topP <= 1)) refuse('--top-p', topP, 'a number above 0, at most 1');
  if (temperature === 0 && (topK > 0 || topP < 1))
    throw new LpqError('LPQ_USAGE', `--top-${topK > 0 ? 'k' : 'p'} has no effect without --temperature`, {
      hint: 'Add --temperature, such as 0.8, or leave the option out.',
    });
}

/** Chooses the tokens of one sequence, one after another. `number` is the sequence's own: others do not change its draws. */
export class Sampler {
  private readonly random: Random;

  constructor(
    private readonly sampling: Sampling,
    number: number,
  ) {
    const root = new Random(sampling.seed);
    let seed = root.next();
    for (let i = 0; i < number; i++) seed = root.next();
    this.random = new Random(Number(seed >> 11n));
  }

  /** Throws LPQ_MODULE_NUMERICS for logits of NaN, or none above -infinity. */
  next(logits: Float32Array): number {
    const best = argmax(logits);
    if (this.sampling.temperature === 0) return best;
    const candidates = this.candidates(logits, logits[best] as number);
    const total = candidates.reduce((sum, { weight }) => sum + weight, 0);
    // 53 uniform bits.
    let left = Number(this.random.next() >> 11n) * 2 ** -53 * total;
    for (const { id, weight } of candidates) {
      left -= weight;
      if (left < 0) return id;
    }
    // The subtractions were rounded up to here.
    return (candidates.at(-1) as Candidate).id;
  }

  /** What top-k and top-p leave, the likeliest first, lower ids first among equals; weights are not normalised. */
  private candidates(logits: Float32Array, peak: number): Candidate[] {
    const { temperature, topK, topP } = this.sampling;
    const all: Candidate[] = [];
    for (let id = 0; id < logits.length; id++) {
      const weight = Math.exp(((logits[id] as number) - peak) / temperature);
      if (weight > 0) all.push({ id, weight });
    }
    all.sort((a, b) => b.weight - a.weight || a.id - b.id);
    const kept = topK > 0 ? all.slice(0, topK) : all;
    if (topP === 1) return kept;
    const wanted = topP * kept.reduce((sum, { weight }) => sum + weight, 0);
    let reached = 0;
    const count = kept.findIndex(({ weight }) => {
      reached += weight;
      return reached >= wanted;
    });
    return count < 0 ? kept : kept.slice(0, count + 1);
  }
}

interface Candidate {
  readonly id: number;
  readonly weight: number;
}

/** The likeliest token, the lowest id among equals. Throws LPQ_MODULE_NUMERICS for NaN, or nothing above -infinity. */
export function argmax(logits: Float32Array): number {
  let [best, most] = [-1, Number.NEGATIVE_INFINITY];
  for (let id = 0; id < logits.length; id++) {
    const value = logits[id] as number;
    if (value > most) [best, most] = [id, value];
    else if (Number.isNaN(value)) best = logits.length;
    if (best === logits.length) break;
  }
  if (best >= 0 && best < logits.length && Number.isFinite(most)) return best;
  throw new LpqError('LPQ_MODULE_NUMERICS', 'the logits of the next token hold NaN or infinity', {
    hint: 'Check the weights for NaN: lpq inspect DIR --check names them. On CUDA, try --activations bf16.',
  });
}
