import { LpqError } from '../../src/core/error.js';
import { textOf } from '../../src/core/text-of.js';
import { f32, type GgufValue, text, u32 } from './metadata.js';
import { GGUF_ARCHITECTURES, type GgufArchitecture } from './names.js';

type Json = Readonly<Record<string, unknown>>;

/** What config.json says of a model, in GGUF's words. */
export interface GgufModel {
  readonly architecture: GgufArchitecture;
  readonly metadata: ReadonlyMap<string, GgufValue>;
  readonly heads: number;
  readonly kvHeads: number;
  readonly vocab: number;
  readonly experts: number;
  /** F32 [head_dim / 2]: by what each frequency of the rotation is divided (Llama 3.1); undefined without. */
  readonly ropeFactors: Float32Array | undefined;
  readonly notes: readonly string[];
}

/**
 * The model's metadata. Throws LPQ_TARGET for an architecture, a RoPE scaling or a router that llama.cpp computes otherwise,
 * LPQ_CONFIG naming a key that is missing or of the wrong type.
 */
export function ggufModel(dir: string, config: Json): GgufModel {
  const type = textOf(config.model_type);
  const architecture = Object.hasOwn(GGUF_ARCHITECTURES, type) ? GGUF_ARCHITECTURES[type] : undefined;
  if (!architecture)
    throw new LpqError('LPQ_TARGET', `lpq has no table for GGUF of model_type '${type}' (${dir})`, {
      got: type,
      expected: Object.keys(GGUF_ARCHITECTURES).join(', '),
      hint: 'Pack for compressed-tensors, gptq or awq.',
    });
  const number = (...keys: string[]): number => {
    const found = optional(...keys);
    if (found !== undefined) return found;
    throw new LpqError('LPQ_CONFIG', `${dir}/config.json lacks '${keys[0]}', which GGUF needs`, {
      expected: 'a number',
    });
  };
  const optional = (...keys: string[]): number | undefined => {
    for (const key of keys) {
      const value = config[key];
      if (value === undefined || value === null) continue;
      if (typeof value === 'number' && Number.isFinite(value)) return value;
      throw new LpqError('LPQ_CONFIG', `${dir}/config.json: '${key}' is not a number`, { got: JSON.stringify(value) });
    }
    return undefined;
  };
  const { name } = architecture;
  const hidden = number('hidden_size');
  const heads = number('num_attention_heads');
  const kvHeads = optional('num_key_value_heads') ?? heads;
  const { theta = 10_000, epsilon = 1e-6, headDim: usual = hidden / heads } = architecture.otherwise ?? {};
  const headDim = optional('head_dim') ?? usual;
  const vocab = number('vocab_size');
  const entries: [string, GgufValue][] = [
    ['general.architecture', text(name)],
    [`${name}.vocab_size`, u32(vocab)],
    [`${name}.context_length`, u32(number('max_position_embeddings'))],
    [`${name}.embedding_length`, u32(hidden)],
    [`${name}.block_count`, u32(number('num_hidden_layers'))],
    [`${name}.feed_forward_length`, u32(number('intermediate_size'))],
    [`${name}.attention.head_count`, u32(heads)],
    [`${name}.attention.head_count_kv`, u32(kvHeads)],
    [`${name}.attention.key_length`, u32(headDim)],
    [`${name}.attention.value_length`, u32(headDim)],
    [`${name}.attention.layer_norm_rms_epsilon`, f32(optional('rms_norm_eps') ?? epsilon)],
    [`${name}.rope.dimension_count`, u32(headDim)],
  ];
  const rope = ropeEntries(dir, config, name, headDim, theta);
  entries.push(...rope.entries);
  const experts = architecture.experts ? number(...architecture.experts.count) : 0;
  if (architecture.experts) {
    entries.push([`${name}.expert_count`, u32(experts)]);
    entries.push([`${name}.expert_used_count`, u32(number('num_experts_per_tok'))]);
    entries.push([`${name}.expert_feed_forward_length`, u32(number(...architecture.experts.width))]);
    if (type === 'qwen2_moe')
      entries.push([`${name}.expert_shared_feed_forward_length`, u32(number('shared_expert_intermediate_size'))]);
    checkRouter(dir, config, architecture);
  }
  const notes =
    config.use_sliding_window === true || (type === 'mistral' && typeof config.sliding_window === 'number')
      ? ['llama.cpp ignores the sliding window of this model: it computes longer texts with full attention.']
      : [];
  return { architecture, metadata: new Map(entries), heads, kvHeads, vocab, experts, ropeFactors: rope.factors, notes };
}

function checkRouter(dir: string, config: Json, { name, normalized }: GgufArchitecture): void {
  const refuse = (what: string, got: unknown, expected: unknown): never => {
    throw new LpqError('LPQ_TARGET', `${dir}: llama.cpp computes ${name} differently: ${what}`, {
      got: JSON.stringify(got),
      expected: JSON.stringify(expected),
      hint: 'Pack for compressed-tensors, gptq or awq.',
    });
  };
  if (name !== 'llama') {
    const own = config.norm_topk_prob ?? false;
    if (own !== normalized) refuse('norm_topk_prob', own, normalized);
  }
  const dense = config.mlp_only_layers;
  if (Array.isArray(dense) && dense.length > 0) refuse('every block has experts (mlp_only_layers)', dense, []);
  const every = config.decoder_sparse_step ?? 1;
  if (every !== 1) refuse('every block has experts (decoder_sparse_step)', every, 1);
}

/** rope_parameters of newer, rope_theta and rope_scaling of older configurations. */
function ropeEntries(dir: string, config: Json, name: string, headDim: number, theta: number) {
  const object = (value: unknown): Json => (typeof value === 'object' && value !== null ? (value as Json) : {});
  const rope = { ...object(config.rope_scaling), ...object(config.rope_parameters) };
  const base = Number(rope.rope_theta ?? config.rope_theta ?? theta);
  const entries: [string, GgufValue][] = [[`${name}.rope.freq_base`, f32(base)]];
  const kind = String(rope.rope_type ?? rope.type ?? 'default');
  const factor = Number(rope.factor);
  const original = Number(rope.original_max_position_embeddings ?? config.max_position_embeddings);
  let factors: Float32Array | undefined;
  const refuse = (got: string): never => {
    throw new LpqError('LPQ_TARGET', `${dir}: GGUF cannot express this RoPE scaling`, {
      got,
      expected: 'default, linear, llama3, or yarn with its usual constants',
      hint: 'Pack for compressed-tensors, gptq or awq.',
    });
  };
  if (kind === 'linear' || kind === 'yarn') {
    entries.push([`${name}.rope.scaling.type`, text(kind)], [`${name}.rope.scaling.factor`, f32(factor)]);
    if (kind === 'yarn') {
      for (const [key, usual] of [
        ['beta_fast', 32],
        ['beta_slow', 1],
        ['attention_factor', undefined],
        ['mscale', undefined],
        ['mscale_all_dim', undefined],
      ] as const)
        if ((rope[key] ?? usual) !== usual) refuse(`yarn with ${key} ${rope[key]}`);
      entries.push([`${name}.rope.scaling.original_context_length`, u32(original)]);
    }
  } else if (kind === 'llama3')
    factors = llama3Factors(
      base,
      headDim,
      factor,
      Number(rope.low_freq_factor),
      Number(rope.high_freq_factor),
      original,
    );
  else if (kind !== 'default') refuse(kind);
  const partial = rope.partial_rotary_factor ?? config.partial_rotary_factor ?? 1;
  if (partial !== 1) refuse(`partial_rotary_factor ${partial}`);
  return { entries, factors };
}

/**
 * Llama 3.1: wavelengths above original / low are stretched by `factor`, those below original / high stay, and between
 * the two the reciprocals are blended.
 */
export function llama3Factors(
  base: number,
  headDim: number,
  factor: number,
  low: number,
  high: number,
  original: number,
) {
  return Float32Array.from({ length: headDim / 2 }, (_, i) => {
    const wavelength = 2 * Math.PI * base ** ((2 * i) / headDim);
    if (wavelength < original / high) return 1;
    if (wavelength > original / low) return factor;
    const share = (original / wavelength - low) / (high - low);
    return 1 / ((1 - share) / factor + share);
  });
}
