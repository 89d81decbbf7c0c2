import { Config, positive, settingNumber } from './config.js';
import type { RopeTable } from './tables/rope.js';

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
  | { readonly kind: 'dynamic'; readonly factor: number; readonly trained: number }
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
    }
  /**
   * LongRoPE (Ding et al. 2024, arXiv:2402.13753), as Phi-3 has it: a divisor for each pair, `long` ones for sequences of
   * more than `original` tokens; cos and sin multiplied by `attention` either way.
   */
  | {
      readonly kind: 'longrope';
      readonly short: readonly number[];
      readonly long: readonly number[];
      readonly original: number;
      readonly attention: number;
      /** Of sequences of more than `original` tokens. */
      readonly longAttention: number;
    }
  /** Pairs span the whole head, but only the first `turning` of them turn. */
  | { readonly kind: 'proportional'; readonly turning: number; readonly factor: number };

/** What config.json says of rotary positions, in either spelling, or the class says where the file does not. */
export function ropeParameters(config: Config, table: RopeTable): Config | undefined {
  const written = config.object('rope_parameters') ?? config.object('rope_scaling');
  return written ?? (table.parameters && new Config({ ...table.parameters }, 'the rope_parameters of the class'));
}

/**
 * Reads both spellings: `rope_parameters` {rope_type, rope_theta, ...}, as transformers 5 writes, and the older
 * top-level `rope_theta` with `rope_scaling` {type or rope_type, ...}; either may hold one object for blocks with a
 * window (sliding_attention) and one for the rest (full_attention). Throws LPQ_CONFIG.
 */
export function ropeSpec(
  config: Config,
  table: RopeTable,
  headDim: number,
  sliding = false,
  positions: readonly string[] = ['max_position_embeddings'],
): RopeSpec {
  const all = ropeParameters(config, table);
  const byType = all?.object(sliding ? 'sliding_attention' : 'full_attention');
  // Without an object of its own, a local theta comes unscaled (Gemma 3).
  const local = sliding && table.local !== undefined && !byType ? settingNumber(config, table.local) : undefined;
  const parameters = byType ?? (local === undefined ? all : undefined);
  const theta =
    local ??
    parameters?.number(['rope_theta']) ??
    config.number(['rope_theta', ...(table.thetaKeys ?? [])], table.theta);
  if (!(theta > 1)) throw config.error('rope_theta', 'is out of range', theta, 'a number above 1');
  const stated =
    parameters?.number(['partial_rotary_factor']) ??
    olderShare(config, table, headDim) ??
    config.number(['partial_rotary_factor', ...(table.shareKeys ?? ['rotary_pct'])], table.share ?? 1);
  const written = parameters?.text(['rope_type', 'type'], 'default') ?? 'default';
  const kind = table.kinds?.[written] ?? written;
  const whole = !table.partial && kind !== 'proportional';
  // Classes that rotate whole heads ignore the key; where they scale, the tables would not fit their heads.
  if (whole && stated !== 1 && kind !== 'default')
    throw config.error('partial_rotary_factor', 'cannot be combined with a scaling in this architecture', stated, 1);
  const share = whole ? 1 : stated;
  const rotary = kind === 'proportional' ? headDim : Math.trunc(headDim * share);
  if (share === 1 && headDim % 2 !== 0)
    throw config.error('head_dim', 'is odd, and rotary positions turn pairs of dimensions', headDim, 'an even number');
  if (rotary < 2 || rotary % 2 !== 0 || rotary > headDim)
    throw config.error(
      'partial_rotary_factor',
      'does not give an even number of rotated dimensions',
      `${headDim} * ${share}`,
      `2, 4, ... ${headDim}`,
    );
  const facts = { kind, positions, headDim, rotary, share, original: table.original, mscales: table.mscales ?? false };
  const alpha = table.alpha && kind === 'dynamic' ? parameters?.number(['alpha']) : undefined;
  if (parameters && alpha !== undefined && rotary > 2) {
    const grown = theta * positive(parameters, { keys: ['alpha'], otherwise: 1 }) ** (rotary / (rotary - 2));
    return { style: table.style, rotary, theta: grown, scaling: { kind: 'default' } };
  }
  return {
    style: table.style,
    rotary,
    theta,
    scaling: parameters ? scaling(config, parameters, facts) : { kind: 'default' },
  };
}

/** How much of a head turns, in files without rope_parameters that state a number of dimensions. */
function olderShare(config: Config, { dimensions }: RopeTable, headDim: number): number | undefined {
  if (dimensions === undefined || config.object('rope_parameters') || !config.find(dimensions)) return undefined;
  return config.count([dimensions], undefined, 2, headDim) / headDim;
}

interface ScalingFacts {
  readonly kind: string;
  readonly positions: readonly string[];
  readonly headDim: number;
  readonly rotary: number;
  readonly share: number;
  readonly original: number | undefined;
  readonly mscales: boolean;
}

function scaling(config: Config, parameters: Config, facts: ScalingFacts): RopeScaling {
  const { kind } = facts;
  const trained = () => config.count(facts.positions);
  const original = () =>
    parameters.count(
      ['original_max_position_embeddings'],
      config.number(['original_max_position_embeddings']) ?? facts.original ?? trained(),
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
      return { kind, factor: factor(), trained: trained() };
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
    case 'longrope':
    case 'su': {
      const divisors = (key: string): readonly number[] => {
        const list = parameters.list(key, 'number');
        if (list.length === facts.rotary / 2 && list.every((value) => value > 0)) return list;
        throw parameters.error(key, 'has no positive number for each pair', list.length, `${facts.rotary / 2} numbers`);
      };
      const ratio = factor(trained() / original());
      const attention =
        parameters.number(['attention_factor']) ??
        (ratio <= 1 ? 1 : Math.sqrt(1 + Math.log(ratio) / Math.log(original())));
      return {
        kind: 'longrope',
        short: divisors('short_factor'),
        long: divisors('long_factor'),
        original: original(),
        attention: (facts.mscales && parameters.number(['short_mscale'])) || attention,
        longAttention: (facts.mscales && parameters.number(['long_mscale'])) || attention,
      };
    }
    case 'proportional':
      return { kind, turning: Math.trunc((facts.headDim * facts.share) / 2), factor: factor(1) };
    default:
      throw parameters.error(
        'rope_type',
        'is a position scaling that lpq does not know',
        kind,
        'default, linear, dynamic, llama3, yarn, longrope or proportional',
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

/** Whether angles depend on how long a sequence is, and this one is long enough for it. */
export function dependsOnLength({ scaling: by }: RopeSpec, length: number): boolean {
  if (by.kind === 'dynamic') return length > by.trained;
  return by.kind === 'longrope' && length > by.original;
}

/** Up to how many tokens a position has the same angles in sequences of every length. */
export function fixedReach({ scaling: by }: RopeSpec): number {
  if (by.kind === 'dynamic') return by.trained;
  return by.kind === 'longrope' ? by.original : Number.POSITIVE_INFINITY;
}

/** Radians a position, f64 [rotary/2]: pair i turns by position * frequency i, in a sequence of `length` tokens. */
export function frequencies(spec: RopeSpec, length = 0): Float64Array {
  const { rotary, scaling: by } = spec;
  let { theta } = spec;
  // With one pair the exponent has no value; its frequency is 1 for every theta.
  if (by.kind === 'dynamic' && length > by.trained && rotary > 2)
    theta *= ((by.factor * length) / by.trained - (by.factor - 1)) ** (rotary / (rotary - 2));
  const plain = Float64Array.from({ length: rotary / 2 }, (_, i) => theta ** ((-2 * i) / rotary));
  if (by.kind === 'linear') return plain.map((frequency) => frequency / by.factor);
  if (by.kind === 'longrope') {
    const divisors = length > by.original ? by.long : by.short;
    return plain.map((frequency, i) => frequency / (divisors[i] as number));
  }
  if (by.kind === 'proportional') return plain.map((frequency, i) => (i < by.turning ? frequency / by.factor : 0));
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
