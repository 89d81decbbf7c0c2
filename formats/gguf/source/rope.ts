import { llama3Factors } from '../rope-factors.js';
import type { GgufFacts } from './facts.js';
import { badGguf } from './file.js';

type Json = Readonly<Record<string, unknown>>;

/** rope_theta and, where positions are stretched, rope_scaling, in the words of config.json; `headDim`: rotated elements of a head. */
export function ropeConfig(facts: GgufFacts, headDim: number, theta = 10_000): Json {
  const base = facts.optional('rope.freq_base') ?? theta;
  const scaling = scalingOf(facts, base, headDim);
  return { rope_theta: base, ...(scaling && { rope_scaling: scaling }) };
}

function scalingOf(facts: GgufFacts, base: number, headDim: number): Json | undefined {
  const kind = facts.text('rope.scaling.type') ?? 'none';
  const factor = facts.optional('rope.scaling.factor') ?? facts.optional('rope.scale_linear');
  const original = facts.optional('rope.scaling.original_context_length');
  if (facts.has('rope_factors_long.weight')) {
    const [long_factor, short_factor] = ['long', 'short'].map((which) => [
      ...facts.floats(`rope_factors_${which}.weight`),
    ]);
    const attention = facts.optional('rope.scaling.attn_factor');
    return { type: 'longrope', long_factor, short_factor, ...(attention && { attention_factor: attention }) };
  }
  if (facts.has('rope_freqs.weight')) {
    if (facts.floats('rope_freqs.weight').some((factor) => factor >= 1e10)) return undefined;
    const found = llama3Scaling(facts.floats('rope_freqs.weight'), base, headDim);
    if (found) return found;
    return badGguf(facts.file.path, "'rope_freqs.weight' stretches positions in a way that config.json cannot express");
  }
  if (kind === 'linear' || (kind === 'none' && factor !== undefined && factor !== 1))
    return factor === undefined || factor === 1 ? undefined : { rope_type: 'linear', factor };
  if (kind === 'yarn')
    return {
      rope_type: 'yarn',
      factor,
      original_max_position_embeddings: original,
      ...beta(facts, 'beta_fast', 32),
      ...beta(facts, 'beta_slow', 1),
      ...attentionFactor(facts, factor),
    };
  if (kind !== 'none' && kind !== 'longrope')
    return badGguf(facts.file.path, 'it stretches positions in a way that lpq does not know', { got: kind });
  return undefined;
}

/** What llama.cpp multiplies YaRN's own term by, as config.json has the product. */
function attentionFactor(facts: GgufFacts, factor: number | undefined): Json {
  const share = facts.optional('rope.scaling.attn_factor');
  return share === undefined || factor === undefined
    ? {}
    : { attention_factor: share * (factor <= 1 ? 1 : 1 + 0.1 * Math.log(factor)) };
}

function beta(facts: GgufFacts, key: string, usual: number): Json {
  const value = facts.optional(`rope.scaling.yarn_${key}`);
  return value === undefined || value === usual ? {} : { [key]: value };
}

/**
 * The settings of Llama 3.1's scaling behind its factors: short waves keep theirs, long ones are divided by the largest, and in
 * between a line over the frequency blends. Two points of the line give it; of settings that mean the same, the one with
 * low_freq_factor 1. Undefined where the factors are none of these.
 */
function llama3Scaling(factors: Float32Array, base: number, headDim: number): Json | undefined {
  const factor = factors.reduce((a, b) => Math.max(a, b), 1);
  if (factors.length !== headDim / 2 || factor === 1) return undefined;
  const points: { readonly turns: number; readonly share: number }[] = [];
  for (const [i, value] of factors.entries()) {
    if (value === 1 || value === factor) continue;
    const turns = 1 / (2 * Math.PI * base ** ((2 * i) / headDim));
    points.push({ turns, share: (1 / value - 1 / factor) / (1 - 1 / factor) });
  }
  // Where too few points lie on the line, the factor that every published model has.
  const candidates: (readonly [high: number, original: number])[] = [
    [4, 8192],
    ...points.map(({ turns, share }) => [4, Math.round((3 * share + 1) / turns)] as const),
    ...Array.from({ length: 15 }, (_, i) => [4, 2 ** (i + 4)] as const),
  ];
  const [first, last] = [points[0], points.at(-1)];
  if (first && last && first !== last) {
    const slope = (first.share - last.share) / (first.turns - last.turns);
    const high = 1 - 1 / (last.share - slope * last.turns);
    candidates.push([Math.round(high * 1000) / 1000, Math.round(slope * (high - 1))]);
  }
  for (const [high, original] of candidates) {
    const made = llama3Factors(base, headDim, factor, 1, high, original);
    if (made.every((value, i) => Math.abs(value - (factors[i] as number)) <= 1e-4 * value))
      return {
        rope_type: 'llama3',
        factor,
        low_freq_factor: 1,
        high_freq_factor: high,
        original_max_position_embeddings: original,
      };
  }
  return undefined;
}
