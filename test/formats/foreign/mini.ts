import { mkdirSync, writeFileSync } from 'node:fs';
import path from 'node:path';
import { writeSafetensors } from '../../../formats/safetensors/write.js';
import { type Codes, type Encoded, roundToNearest, weightOf } from './encode.js';

/** A made-up Llama small enough to be written dozens of times. */
export const CONFIG = {
  architectures: ['LlamaForCausalLM'],
  model_type: 'llama',
  hidden_size: 64,
  intermediate_size: 128,
  num_attention_heads: 2,
  num_key_value_heads: 1,
  num_hidden_layers: 2,
  vocab_size: 48,
  rms_norm_eps: 1e-6,
  max_position_embeddings: 64,
  tie_word_embeddings: false,
  torch_dtype: 'float16',
};

/** Every linear of a block: its path in the layer and [N, K]. */
const LINEARS: readonly (readonly [string, number, number])[] = [
  ['self_attn.q_proj', 64, 64],
  ['self_attn.k_proj', 32, 64],
  ['self_attn.v_proj', 32, 64],
  ['self_attn.o_proj', 64, 64],
  ['mlp.gate_proj', 128, 64],
  ['mlp.up_proj', 128, 64],
  ['mlp.down_proj', 64, 128],
];

export interface Linear {
  readonly name: string;
  readonly n: number;
  readonly k: number;
  /** f32 [N*K], about normal. */
  readonly weight: Float32Array<ArrayBuffer>;
}

export const linears: readonly Linear[] = [0, 1].flatMap((layer) =>
  LINEARS.map(
    ([part, n, k], i): Linear => ({
      name: `model.layers.${layer}.${part}`,
      n,
      k,
      weight: normal(n * k, layer * 16 + i + 1),
    }),
  ),
);

/** What is never quantized. */
export const plain: readonly Encoded[] = [
  f32('model.embed_tokens.weight', [48, 64], normal(48 * 64, 101)),
  f32('lm_head.weight', [48, 64], normal(48 * 64, 102)),
  f32('model.norm.weight', [64], new Float32Array(64).fill(1)),
  ...[0, 1].flatMap((layer) => [
    f32(`model.layers.${layer}.input_layernorm.weight`, [64], new Float32Array(64).fill(1)),
    f32(`model.layers.${layer}.post_attention_layernorm.weight`, [64], new Float32Array(64).fill(0.5)),
  ]),
];

/** Sums of twelve uniform numbers: deterministic, near enough to a normal of deviation 0.1. */
function normal(count: number, seed: number): Float32Array<ArrayBuffer> {
  let state = (seed * 2654435761) >>> 0;
  return Float32Array.from({ length: count }, () => {
    let sum = -6;
    for (let i = 0; i < 12; i++) {
      state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
      sum += state / 2 ** 32;
    }
    return sum * 0.1;
  });
}

export function f32(name: string, shape: readonly number[], data: Float32Array): Encoded {
  return { name, dtype: 'F32', shape, data };
}

/** The codes of every linear, rounded to nearest. */
export function quantized(options: { bits: number; group: number; symmetric: boolean }): Map<string, Codes> {
  return new Map(linears.map(({ name, n, k, weight }) => [name, roundToNearest(weight, { n, k, ...options })]));
}

export interface Files {
  readonly tensors: readonly Encoded[];
  /** quantization_config; undefined for none. */
  readonly settings?: object | undefined;
  readonly config?: object;
}

/** Writes DIR with one model.safetensors. */
export async function writeModel(dir: string, { tensors, settings, config = CONFIG }: Files): Promise<string> {
  mkdirSync(dir, { recursive: true });
  await writeSafetensors(path.join(dir, 'model.safetensors'), tensors);
  writeFileSync(
    path.join(dir, 'config.json'),
    JSON.stringify({ ...config, ...(settings !== undefined && { quantization_config: settings }) }),
  );
  writeFileSync(path.join(dir, 'tokenizer.json'), '{}\n');
  return dir;
}

/** The plain model of the weights that these codes stand for: what the quantized one must compute like. */
export function dequantized(dir: string, codes: ReadonlyMap<string, Codes>): Promise<string> {
  return writeModel(dir, {
    tensors: [...plain, ...[...codes].map(([name, c]) => f32(`${name}.weight`, [c.n, c.k], weightOf(c)))],
  });
}

export const gptqSettings = (bits: number, group: number, rest: object = {}) => ({
  quant_method: 'gptq',
  bits,
  group_size: group,
  desc_act: false,
  sym: true,
  checkpoint_format: 'gptq',
  ...rest,
});

export const packedSettings = (bits: number, group: number | null, symmetric: boolean, rest: object = {}) => ({
  quant_method: 'compressed-tensors',
  format: 'pack-quantized',
  ignore: ['lm_head'],
  config_groups: {
    group_0: {
      targets: ['Linear'],
      weights: {
        num_bits: bits,
        type: 'int',
        symmetric,
        strategy: group === null ? 'channel' : 'group',
        group_size: group,
        ...rest,
      },
      input_activations: null,
    },
  },
});
