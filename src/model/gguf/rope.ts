import { f32, type GgufValue, text, u32 } from '../../../formats/gguf/metadata.js';
import { llama3Factors } from '../../../formats/gguf/rope-factors.js';
import type { RopeScaling, RopeSpec } from '../rope.js';
import { type GgufSubject, latents, ropes } from './facts.js';

type Entry = readonly [key: string, value: GgufValue];

/** Tensors that scale positions, by their names in the file, F32 [rotary / 2]. */
export type RopeTensors = ReadonlyMap<string, Float32Array>;

/** The rotation that llama.cpp scales: of blocks without a window, or of all. */
export function scaledRope({ plan }: GgufSubject): RopeSpec | undefined {
  const { whole, local } = ropes(plan);
  return whole ?? local;
}

/** What YaRN multiplies cos and sin by where nothing else is said. */
export const usualAttention = (factor: number): number => (factor <= 1 ? 1 : 1 + 0.1 * Math.log(factor));

/** Keys of the rotation and of how positions are scaled. */
export function ropeEntries(subject: GgufSubject): Entry[] {
  const rope = scaledRope(subject);
  if (!rope) return [];
  const { local } = ropes(subject.plan);
  return [
    ['rope.dimension_count', u32(rope.rotary)],
    ['rope.freq_base', f32(rope.theta)],
    ...(local && local !== rope ? [['rope.freq_base_swa', f32(local.theta)] as const] : []),
    ...(local && local.rotary !== rope.rotary ? [['rope.dimension_count_swa', u32(local.rotary)] as const] : []),
    ...(subject.computes.sections
      ? [['rope.dimension_sections', { type: 'i32s', value: fourSections(subject) }] as const]
      : []),
    ...scalingEntries(subject, rope.scaling),
  ];
}

/** Sections of four axes, of which text turns all alike. */
const fourSections = ({ sections, computes }: GgufSubject): number[] =>
  [...(sections.length > 0 ? sections : (computes.sections ?? [])), 0, 0, 0, 0].slice(0, 4);

function scalingEntries(subject: GgufSubject, scaling: RopeScaling): Entry[] {
  const [latent] = latents(subject.plan);
  switch (scaling.kind) {
    case 'linear':
      return [
        ['rope.scaling.type', text('linear')],
        ['rope.scaling.factor', f32(scaling.factor)],
      ];
    case 'yarn': {
      const { factor, original, attention, betaFast, betaSlow } = scaling;
      const share = attention / usualAttention(factor);
      const betas = betaFast !== 32 || betaSlow !== 1;
      return [
        ['rope.scaling.type', text('yarn')],
        ['rope.scaling.factor', f32(factor)],
        ['rope.scaling.original_context_length', u32(original)],
        ...(betas
          ? ([
              ['rope.scaling.yarn_beta_fast', f32(betaFast)],
              ['rope.scaling.yarn_beta_slow', f32(betaSlow)],
            ] as const)
          : []),
        ...(latent
          ? [['rope.scaling.yarn_log_multiplier', f32(0.1 * allDimensions(latent, factor))] as const]
          : Math.abs(share - 1) > 1e-7
            ? [['rope.scaling.attn_factor', f32(share)] as const]
            : []),
      ];
    }
    case 'longrope':
      return [
        ['rope.scaling.type', text('longrope')],
        ['rope.scaling.original_context_length', u32(scaling.original)],
        ['rope.scaling.attn_factor', f32(scaling.attention)],
      ];
    default:
      return [];
  }
}

/** mscale_all_dim of DeepSeek's YaRN: scores carry the square of its term. */
export function allDimensions(
  { scale, plain, rotary }: { scale: number; plain: number; rotary: number },
  factor: number,
) {
  const term = Math.sqrt(scale * Math.sqrt(plain + rotary));
  return Number(((term - 1) / (0.1 * Math.log(factor))).toPrecision(6));
}

export function ropeTensors(subject: GgufSubject): RopeTensors {
  const rope = scaledRope(subject);
  if (rope?.scaling.kind === 'longrope')
    return new Map([
      ['rope_factors_long.weight', Float32Array.from(rope.scaling.long)],
      ['rope_factors_short.weight', Float32Array.from(rope.scaling.short)],
    ]);
  if (rope?.scaling.kind === 'proportional') {
    const { turning, factor: by } = rope.scaling;
    // What a frequency is divided by that is none.
    const divisors = Float32Array.from({ length: rope.rotary / 2 }, (_, i) => (i < turning ? by : 1e30));
    return new Map([['rope_freqs.weight', divisors]]);
  }
  if (rope?.scaling.kind !== 'llama3') return new Map();
  const { factor, low, high, original } = rope.scaling;
  const factors = llama3Factors(rope.theta, rope.rotary, factor, low, high, original);
  return new Map([['rope_freqs.weight', factors]]);
}
