import { fromTyped, type Tensor } from '../../native/binding.js';
import { LpqError } from '../core/error.js';
import type { Config } from './config.js';

/** Rotary positions, resolved: how angles depend on position. Frequencies scale per the kind. */
export interface RopeSpec {
  readonly style: 'half' | 'interleaved';
  /** Rotated dimensions of each head, the first ones. */
  readonly rotary: number;
  readonly theta: number;
  readonly scaling: RopeScaling;
}

export type RopeScaling =
  | { readonly kind: 'default' }
  /** Positions divided by `factor` (position interpolation, Chen et al. 2023). */
  | { readonly kind: 'linear'; readonly factor: number }
  /** NTK-aware theta that grows with the sequence beyond `trained` positions; the same as default up to there. */
  | { readonly kind: 'dynamic'; readonly trained: number }
  /** Llama 3.1: long wavelengths divided by `factor`, short ones kept, a ramp between. */
  | {
      readonly kind: 'llama3';
      readonly factor: number;
      readonly low: number;
      readonly high: number;
      readonly original: number;
    }
  /** YaRN (Peng et al. 2023, §3): a ramp between dimension indices, and cos and sin multiplied by `attention`. */
  | {
      readonly kind: 'yarn';
      readonly factor: number;
      readonly original: number;
      readonly betaFast: number;
      readonly betaSlow: number;
      readonly truncate: boolean;
      readonly attention: number;
    };

/**
 * Reads both spellings: `rope_parameters` {rope_type, rope_theta, ...}, as transformers 5 writes, and the older
 * top-level `rope_theta` with `rope_scaling` {type or rope_type, ...}. Throws LPQ_CONFIG.
 */
export function ropeSpec(
  config: Config,
  table: { readonly style: 'half' | 'interleaved'; readonly theta: number },
  headDim: number,
): RopeSpec {
  const parameters = config.object('rope_parameters') ?? config.object('rope_scaling');
  const theta = parameters?.number(['rope_theta']) ?? config.number(['rope_theta'], table.theta);
  if (!(theta > 1)) throw config.error('rope_theta', 'is out of range', theta, 'a number above 1');
  const share =
    parameters?.number(['partial_rotary_factor']) ?? config.number(['partial_rotary_factor', 'rotary_pct'], 1);
  const rotary = Math.trunc(headDim * share);
  if (rotary < 2 || rotary % 2 !== 0 || rotary > headDim)
    throw config.error(
      'partial_rotary_factor',
      'does not give an even number of rotated dimensions',
      `${headDim} * ${share}`,
      `2, 4, ... ${headDim}`,
    );
  return { style: table.style, rotary, theta, scaling: parameters ? scaling(config, parameters) : { kind: 'default' } };
}

function scaling(config: Config, parameters: Config): RopeScaling {
  const kind = parameters.text(['rope_type', 'type'], 'default');
  const trained = () => config.count(['max_position_embeddings']);
  const original = () =>
    parameters.count(
      ['original_max_position_embeddings'],
      config.number(['original_max_position_embeddings']) ?? trained(),
    );
  const factor = (otherwise?: number): number => {
    const value = parameters.number(['factor'], otherwise);
    if (value !== undefined && value > 0) return value;
    throw parameters.error('factor', 'is missing or not positive', value ?? null, 'a positive number');
  };
  switch (kind) {
    case 'default':
      return { kind };
    case 'linear':
      return { kind, factor: factor() };
    case 'dynamic':
      return { kind, trained: trained() };
    case 'llama3': {
      const low = parameters.number(['low_freq_factor'], 1);
      const high = parameters.number(['high_freq_factor'], 4);
      if (!(high > low))
        throw parameters.error('high_freq_factor', 'is not above low_freq_factor', high, `more than ${low}`);
      return { kind, factor: factor(), low, high, original: original() };
    }
    case 'yarn': {
      const scale = factor(trained() / original());
      return {
        kind,
        factor: scale,
        original: original(),
        betaFast: parameters.number(['beta_fast'], 32),
        betaSlow: parameters.number(['beta_slow'], 1),
        truncate: parameters.flag({ keys: ['truncate'], otherwise: true }),
        attention: parameters.number(['attention_factor']) ?? yarnAttention(parameters, scale),
      };
    }
    default:
      throw parameters.error(
        'rope_type',
        'is a position scaling that lpq does not know',
        kind,
        'default, linear, dynamic, llama3 or yarn',
      );
  }
}

/** 0.1 ln(factor) + 1 (YaRN eq. 22), or the ratio of two such terms where DeepSeek's mscale keys are both set. */
function yarnAttention(parameters: Config, factor: number): number {
  const term = (scale: number) => (factor <= 1 ? 1 : 0.1 * scale * Math.log(factor) + 1);
  const mscale = parameters.number(['mscale'], 0);
  const all = parameters.number(['mscale_all_dim'], 0);
  return mscale !== 0 && all !== 0 ? term(mscale) / term(all) : term(1);
}

/** Radians a position, f64 [rotary/2]: pair i turns by position * frequency i. */
export function frequencies(spec: RopeSpec): Float64Array {
  const { rotary, theta, scaling: by } = spec;
  const plain = Float64Array.from({ length: rotary / 2 }, (_, i) => theta ** ((-2 * i) / rotary));
  if (by.kind === 'linear') return plain.map((frequency) => frequency / by.factor);
  if (by.kind === 'llama3')
    return plain.map((frequency) => {
      // How many times the pair turns within the original context decides: below `low` slow, above `high` fast.
      const turns = (by.original * frequency) / (2 * Math.PI);
      if (turns < by.low) return frequency / by.factor;
      if (turns > by.high) return frequency;
      const keep = (turns - by.low) / (by.high - by.low);
      return keep * frequency + ((1 - keep) * frequency) / by.factor;
    });
  if (by.kind === 'yarn') {
    // The (fractional) pair index that turns `turns` times within the original context.
    const pairTurning = (turns: number) =>
      (rotary * Math.log(by.original / (turns * 2 * Math.PI))) / (2 * Math.log(theta));
    const round = by.truncate ? { down: Math.floor, up: Math.ceil } : { down: (x: number) => x, up: (x: number) => x };
    const first = Math.max(round.down(pairTurning(by.betaFast)), 0);
    const end = Math.min(round.up(pairTurning(by.betaSlow)), rotary - 1);
    const last = end === first ? first + 0.001 : end;
    return plain.map((frequency, i) => {
      const slow = Math.min(1, Math.max(0, (i - first) / (last - first)));
      return (slow * frequency) / by.factor + (1 - slow) * frequency;
    });
  }
  return plain;
}

export interface RopeTables {
  /** f32 [positions, rotary/2]. */
  readonly cos: Tensor;
  readonly sin: Tensor;
  readonly positions: number;
}

/**
 * cos and sin of the angles at positions 0 .. positions-1. Frequencies and angles are rounded to f32 before the cosine,
 * as the implementations that models are trained and served with do. Throws LPQ_CONFIG where a dynamic scaling would
 * depend on the length of each sequence.
 */
export function ropeTables(spec: RopeSpec, positions: number): RopeTables {
  const { rotary, scaling: by } = spec;
  if (by.kind === 'dynamic' && positions > by.trained)
    throw new LpqError('LPQ_CONFIG', 'dynamic RoPE scaling is read up to max_position_embeddings tokens only', {
      got: `a sequence of ${positions} tokens`,
      expected: `at most ${by.trained}`,
      hint: 'Use shorter sequences: beyond that length its angles depend on how long each sequence is.',
    });
  const half = rotary / 2;
  const attention = by.kind === 'yarn' ? by.attention : 1;
  const frequency = Float32Array.from(frequencies(spec));
  const cos = new Float32Array(positions * half);
  const sin = new Float32Array(positions * half);
  for (let position = 0, at = 0; position < positions; position++)
    for (let i = 0; i < half; i++, at++) {
      const angle = Math.fround(position * (frequency[i] as number));
      cos[at] = Math.cos(angle) * attention;
      sin[at] = Math.sin(angle) * attention;
    }
  const shape = [positions, half];
  return { cos: fromTyped('f32', shape, cos), sin: fromTyped('f32', shape, sin), positions };
}
